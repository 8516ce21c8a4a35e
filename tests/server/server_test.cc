#include "server/server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "tests/server/server_fixture.h"

namespace condense {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

TEST_F(ServerTest, AStreamIsAcceptedThenPromptThenTokensThenFinished) {
  Start();
  v1::GenerateRequest request = ShortRequest(20);
  request.mutable_output()->set_prompt(true);
  request.set_request_id("mine");
  const Streamed streamed = Stream(request);
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  ASSERT_GE(streamed.events.size(), 4u);
  EXPECT_EQ(streamed.events[0].accepted().request_id(), "mine");
  EXPECT_EQ(streamed.events[0].accepted().seed(), 1u);
  EXPECT_GT(streamed.events[1].prompt().token_ids_size(), 0);
  EXPECT_EQ(streamed.ids.size(), 20u);
  const v1::GenerateEvent::Finished& finished = streamed.events.back().finished();
  EXPECT_EQ(finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(finished.usage().completion_tokens(), 20);
  EXPECT_EQ(finished.usage().prompt_tokens(), streamed.events[1].prompt().token_ids_size());
  EXPECT_EQ(finished.receipt().ratio(), 1.0);
  EXPECT_GT(finished.receipt().bytes_16bit(), 0);
  EXPECT_TRUE(IdleSoon());
}

TEST_F(ServerTest, UnaryAndStreamedAnswersAreTheSame) {
  Start();
  v1::GenerateRequest request = ShortRequest(30);
  request.mutable_output()->set_logprobs(2);
  const Streamed streamed = Stream(request);
  v1::GenerateResponse response;
  ASSERT_TRUE(Generate(request, &response).ok());
  std::vector<int32_t> ids;
  for (const v1::TokenInfo& token : response.tokens()) ids.push_back(token.token_id());
  EXPECT_EQ(ids, streamed.ids);
  EXPECT_EQ(response.text(), streamed.text);
  EXPECT_EQ(response.tokens(0).top_size(), 2);
  EXPECT_EQ(response.tokens(0).top(0).token_id(), response.tokens(0).token_id());  // greedy
  EXPECT_LT(response.tokens(0).logprob(), 0);
  EXPECT_FALSE(response.request_id().empty());
}

TEST_F(ServerTest, ConcurrentClientsGetTheirOwnAnswers) {
  Start();
  const Streamed alone = Stream(ShortRequest(40));
  std::vector<Streamed> together(8);
  std::vector<std::thread> clients;
  for (Streamed& streamed : together) {
    clients.emplace_back([&] { streamed = Stream(ShortRequest(40)); });
  }
  for (std::thread& client : clients) client.join();
  for (const Streamed& streamed : together) {
    EXPECT_TRUE(streamed.status.ok());
    EXPECT_EQ(streamed.ids.size(), alone.ids.size());
  }
  EXPECT_TRUE(IdleSoon());
}

TEST_F(ServerTest, BadRequestsNameTheField) {
  Start();
  v1::GenerateRequest request = ShortRequest(1);
  request.mutable_sampling()->set_top_p(1.5);
  const grpc::Status status = Stream(request).status;
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "sampling.top_p is 1.5; must be in (0, 1]");
  v1::GenerateResponse response;
  EXPECT_EQ(Generate(request, &response).error_code(), grpc::INVALID_ARGUMENT);
  request = ShortRequest(1);
  request.set_model("other");
  EXPECT_EQ(Stream(request).status.error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(metrics_.rejections(RejectionReason::kInvalid).value(), 3);
  EXPECT_EQ(metrics_.requests(RequestOutcome::kRejected).value(), 3);
}

TEST_F(ServerTest, AMessageAboveTheLimitIsRefusedByTheTransport) {
  ServerOptions options;
  options.limits.max_message_bytes = 1 << 20;
  Start({}, options);
  v1::GenerateRequest request;
  request.set_text(std::string(2 << 20, 'a'));
  EXPECT_EQ(Stream(request).status.error_code(), grpc::RESOURCE_EXHAUSTED);
}

TEST_F(ServerTest, ACancelledStreamEndsItsRequest) {
  Start();
  grpc::ClientContext context;
  auto reader = inference_->GenerateStream(&context, LongRequest());
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  ASSERT_TRUE(reader->Read(&event));
  context.TryCancel();
  while (reader->Read(&event)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
  EXPECT_TRUE(IdleSoon());
  EXPECT_EQ(metrics_.requests(RequestOutcome::kCancelled).value(), 1);
  // The engine closes its books first; the reader goes with its last event.
  EXPECT_TRUE(Soon([&] { return dispatcher_.num_readers() == 0; }));
}

TEST_F(ServerTest, ADeadlineEndsStreamAndRequest) {
  Start();
  Stream(ShortRequest(1));
  // On a busy machine the client may give up before the server has begun.
  const auto expired = [this] { return metrics_.requests(RequestOutcome::kDeadline).value(); };
  for (int milliseconds = 100; milliseconds <= 1600 && expired() == 0; milliseconds *= 2) {
    EXPECT_EQ(Stream(LongRequest(), absl::Milliseconds(milliseconds)).status.error_code(),
              grpc::DEADLINE_EXCEEDED);
    EXPECT_TRUE(IdleSoon());
  }
  EXPECT_EQ(expired(), 1);
}

TEST_F(ServerTest, AbortEndsAStreamWithAnErrorEvent) {
  Start();
  v1::GenerateRequest request = LongRequest();
  request.set_request_id("victim");
  grpc::ClientContext context;
  auto reader = inference_->GenerateStream(&context, request);
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  const auto abort = [&] {
    grpc::ClientContext call;
    v1::AbortRequest victim;
    v1::AbortResponse response;
    victim.set_request_id("victim");
    EXPECT_TRUE(admin_->Abort(&call, victim, &response).ok());
    return response.found();
  };
  EXPECT_TRUE(abort());
  v1::GenerateEvent last;
  while (reader->Read(&event)) last = event;
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
  EXPECT_EQ(last.error().code(), grpc::CANCELLED);
  EXPECT_TRUE(IdleSoon());
  EXPECT_FALSE(abort());
}

TEST_F(ServerTest, ALiveRequestIdCannotBeUsedTwice) {
  Start();
  v1::GenerateRequest request = LongRequest();
  request.set_request_id("twin");
  grpc::ClientContext context;
  auto reader = inference_->GenerateStream(&context, request);
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(Stream(request).status.error_code(), grpc::ALREADY_EXISTS);
  context.TryCancel();
}

TEST_F(ServerTest, AFullQueueSaysWhenToTryAgain) {
  EngineConfig config;
  config.max_sequences = 1;
  config.max_queued_requests = 1;
  Start(config);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>>> readers;
  grpc::Status refusal;
  for (int i = 0; i < 20 && refusal.ok(); ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(inference_->GenerateStream(contexts.back().get(), LongRequest()));
    v1::GenerateEvent event;
    if (!readers.back()->Read(&event)) refusal = readers.back()->Finish();
  }
  EXPECT_EQ(refusal.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_GE(RetryDelay(refusal), 1);
  EXPECT_EQ(metrics_.rejections(RejectionReason::kQueueFull).value(), 1);
  for (auto& context : contexts) context->TryCancel();
}

TEST_F(ServerTest, ASlowReaderLosesItsRequestAndNobodyElseDoes) {
  EngineConfig config;
  config.stream_buffer_tokens = 16;
  Start(config);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt("grpc.use_local_subchannel_pool", 1);
  Connect(arguments);
  v1::GenerateRequest request = LongRequest();
  request.mutable_output()->set_logprobs(20);
  grpc::ClientContext context;
  auto reader = inference_->GenerateStream(&context, request);
  const absl::Time until = absl::Now() + absl::Seconds(20);
  while (metrics_.requests(RequestOutcome::kError).value() == 0 && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(metrics_.requests(RequestOutcome::kError).value(), 1);
  EXPECT_TRUE(IdleSoon());
  EXPECT_TRUE(Stream(ShortRequest(8)).status.ok());

  v1::GenerateEvent event, last;
  int32_t tokens = 0;
  while (reader->Read(&event)) {
    tokens += event.tokens().tokens_size();
    last = event;
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(last.error().code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_LT(tokens, engine_->model_info().max_context - 10);
}

TEST_F(ServerTest, ScoreReturnsALogprobPerTokenAfterTheFirst) {
  Start();
  v1::ScoreRequest request;
  for (const int32_t id : {79, 6, 230, 247, 12}) request.mutable_token_ids()->add_ids(id);
  grpc::ClientContext context;
  v1::ScoreResponse response;
  ASSERT_TRUE(inference_->Score(&context, request, &response).ok());
  EXPECT_THAT(response.token_ids(), ElementsAre(79, 6, 230, 247, 12));
  ASSERT_EQ(response.logprobs_size(), 4);
  EXPECT_NEAR(response.logprobs(0), -6.80466, 0.3);  // tests/data/tiny/llama-f32.json
  EXPECT_GT(response.mean_nll(), 0);
  EXPECT_EQ(response.usage().prompt_tokens(), 5);
}

TEST_F(ServerTest, TextSurvivesTokenizeAndDetokenize) {
  Start();
  const std::string text = "Hello, w\xC3\xB6rld! <|im_end|>";
  grpc::ClientContext first, second, third;
  v1::TokenizeRequest tokenize;
  tokenize.set_text(text);
  v1::TokenizeResponse ids;
  ASSERT_TRUE(text_->Tokenize(&first, tokenize, &ids).ok());
  v1::DetokenizeRequest detokenize;
  *detokenize.mutable_token_ids() = ids.token_ids();
  v1::DetokenizeResponse back;
  ASSERT_TRUE(text_->Detokenize(&second, detokenize, &back).ok());
  EXPECT_EQ(back.text(), text);
  EXPECT_EQ(back.raw(), text);

  detokenize.clear_token_ids();
  detokenize.add_token_ids(100000);
  const grpc::Status status = text_->Detokenize(&third, detokenize, &back);
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "token_ids[0] is 100000; must be in [0, 287]");
}

TEST_F(ServerTest, RenderChatShowsWhatAChatBecomes) {
  Start();
  v1::RenderChatRequest request;
  v1::ChatMessage* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("hi");
  grpc::ClientContext context, other;
  v1::RenderChatResponse response;
  ASSERT_TRUE(text_->RenderChat(&context, request, &response).ok());
  EXPECT_THAT(response.text(), HasSubstr("<|im_start|>user\nhi<|im_end|>"));
  EXPECT_GT(response.token_ids_size(), 0);
  message->set_role("judge");
  const grpc::Status status = text_->RenderChat(&other, request, &response);
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("judge"));
}

TEST_F(ServerTest, InfoTellsModelLimitsAndLoad) {
  Start();
  grpc::ClientContext first, second, third;
  v1::GetServerInfoResponse server;
  ASSERT_TRUE(info_->GetServerInfo(&first, {}, &server).ok());
  EXPECT_EQ(server.version(), CONDENSE_VERSION);
  EXPECT_EQ(server.backend(), "cpu");
  EXPECT_EQ(server.state(), v1::GetServerInfoResponse::STATE_SERVING);
  EXPECT_EQ(server.limits().at("max_stop_strings"), 16);
  EXPECT_EQ(server.limits().at("max_prompt_tokens"), 511);
  v1::GetModelInfoResponse model;
  ASSERT_TRUE(info_->GetModelInfo(&second, {}, &model).ok());
  EXPECT_EQ(model.name(), "tiny");
  EXPECT_EQ(model.architecture(), "llama");
  EXPECT_EQ(model.vocab_size(), 288);
  EXPECT_EQ(model.chat_template_family(), "chatml");
  v1::GetLoadResponse load;
  ASSERT_TRUE(info_->GetLoad(&third, {}, &load).ok());
  EXPECT_EQ(load.running(), 0);
  EXPECT_GT(load.kv_bytes_total(), 0);
  EXPECT_FALSE(load.has_seconds_since_last_step());
}

TEST_F(ServerTest, HealthIsPerService) {
  Start();
  for (const char* name :
       {"", "condense.v1.Inference", "condense.v1.Text", "condense.v1.Info", "condense.v1.Admin"}) {
    EXPECT_EQ(Health(name), "SERVING") << name;
  }
  EXPECT_EQ(Health("condense.v1.Nothing"), "NOT_FOUND");
}

TEST_F(ServerTest, ReflectionListsServicesAndDescribesThem) {
  namespace reflection = grpc::reflection::v1;
  Start();
  const auto stub = reflection::ServerReflection::NewStub(channel_);
  grpc::ClientContext context;
  const auto stream = stub->ServerReflectionInfo(&context);
  const auto ask = [&](auto set) {
    reflection::ServerReflectionRequest request;
    reflection::ServerReflectionResponse response;
    set(&request);
    EXPECT_TRUE(stream->Write(request) && stream->Read(&response));
    return response;
  };
  std::vector<std::string> names;
  const auto listed = ask([](auto* r) { r->set_list_services(""); });
  for (const auto& service : listed.list_services_response().service()) {
    names.push_back(service.name());
  }
  EXPECT_THAT(names, IsSupersetOf({"condense.v1.Inference", "condense.v1.Text", "condense.v1.Info",
                                   "condense.v1.Admin", "grpc.health.v1.Health",
                                   "grpc.reflection.v1.ServerReflection",
                                   "grpc.reflection.v1alpha.ServerReflection"}));
  const auto file = [&](const char* symbol) {
    return ask([&](auto* r) { r->set_file_containing_symbol(symbol); });
  };
  EXPECT_EQ(file("condense.v1.Inference").file_descriptor_response().file_descriptor_proto_size(),
            2);  // inference.proto and common.proto
  EXPECT_EQ(file("condense.v1.Nothing").error_response().error_code(), grpc::NOT_FOUND);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(ServerTest, ADrainRefusesNewRequestsAndFinishesRunningOnes) {
  Start();
  grpc::ClientContext context;
  auto reader = inference_->GenerateStream(&context, LongRequest());
  v1::GenerateEvent event, last;
  ASSERT_TRUE(reader->Read(&event));
  engine_->Drain();
  const grpc::Status refusal = Stream(ShortRequest(1)).status;
  EXPECT_EQ(refusal.error_code(), grpc::UNAVAILABLE);
  EXPECT_GE(RetryDelay(refusal), 1);
  std::thread reading([&] {
    while (reader->Read(&event)) last = event;
  });
  EXPECT_EQ(server_->Drain(absl::Seconds(60)), 0);
  reading.join();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(last.has_finished());
  EXPECT_EQ(Health(""), "NOT_SERVING");
  EXPECT_EQ(Health("condense.v1.Inference"), "NOT_SERVING");
  EXPECT_EQ(metrics_.rejections(RejectionReason::kDraining).value(), 1);
}

TEST_F(ServerTest, AdminDrainAnswersWhenNothingIsLeft) {
  Start();
  grpc::ClientContext context, info_context;
  v1::DrainRequest request;
  request.set_timeout_seconds(20);
  v1::DrainResponse response;
  ASSERT_TRUE(admin_->Drain(&context, request, &response).ok());
  EXPECT_TRUE(response.drained());
  EXPECT_EQ(response.remaining(), 0);
  v1::GetServerInfoResponse server;
  ASSERT_TRUE(info_->GetServerInfo(&info_context, {}, &server).ok());
  EXPECT_EQ(server.state(), v1::GetServerInfoResponse::STATE_DRAINING);
}

TEST_F(ServerTest, ShutdownEndsWhatIsLeft) {
  Start();
  grpc::ClientContext context;
  auto reader = inference_->GenerateStream(&context, LongRequest());
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  const absl::Time begin = absl::Now();
  server_->Shutdown();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  while (reader->Read(&event)) {
  }
  EXPECT_EQ(dispatcher_.num_readers(), 0);
}

TEST_F(ServerTest, ATakenAddressIsOneClearError) {
  Start();
  ServerOptions options;
  options.listen = server_->address();
  const auto second = Server::Start(options, engine_.get(), &dispatcher_, nullptr);
  ASSERT_FALSE(second.ok());
  EXPECT_TRUE(absl::IsUnavailable(second.status()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(server_->address()));
}

}  // namespace
}  // namespace condense
