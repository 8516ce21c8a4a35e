// Calls that their clients leave in every state that a request can be in: nothing of them may stay.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>

#include "tests/server/server_fixture.h"

namespace condense {
namespace {

using Reader = grpc::ClientReader<v1::GenerateEvent>;

class AbandonedStreamTest : public ServerTest {
 protected:
  void SetUp() override {
    EngineConfig config;
    config.max_sequences = 1;
    config.step_tokens = 16;
    Start(config);
  }

  // Reads until the first event of this kind. False if the stream ends before.
  static bool ReadUntil(Reader* reader, v1::GenerateEvent::EventCase kind) {
    for (v1::GenerateEvent event; reader->Read(&event);) {
      if (event.event_case() == kind) return true;
    }
    return false;
  }

  // Leaves the call, takes what was sent before, and returns how the call ended.
  static grpc::StatusCode Leave(grpc::ClientContext* context, Reader* reader) {
    context->TryCancel();
    for (v1::GenerateEvent event; reader->Read(&event);) {
    }
    return reader->Finish().error_code();
  }

  void ExpectNothingIsLeft() {
    EXPECT_TRUE(IdleSoon());
    EXPECT_TRUE(Soon([&] { return dispatcher_.num_readers() == 0; }));
    EXPECT_TRUE(Stream(ShortRequest(4)).status.ok());
  }

  double Ended() {
    double ended = 0;
    for (const RequestOutcome outcome :
         {RequestOutcome::kStop, RequestOutcome::kLength, RequestOutcome::kCancelled,
          RequestOutcome::kDeadline, RequestOutcome::kError}) {
      ended += metrics_.requests(outcome).value();
    }
    return ended;
  }

  grpc::ClientContext context_;
};

TEST_F(AbandonedStreamTest, BeforeItIsAccepted) {
  for (int i = 0; i < 50; ++i) {
    grpc::ClientContext context;
    const auto reader = inference_->GenerateStream(&context, LongRequest());
    EXPECT_EQ(Leave(&context, reader.get()), grpc::CANCELLED);
  }
  ExpectNothingIsLeft();
}

TEST_F(AbandonedStreamTest, InTheQueue) {
  grpc::ClientContext running_context;
  const auto running = inference_->GenerateStream(&running_context, LongRequest());
  ASSERT_TRUE(ReadUntil(running.get(), v1::GenerateEvent::kTokens));
  const auto reader = inference_->GenerateStream(&context_, LongRequest());
  ASSERT_TRUE(ReadUntil(reader.get(), v1::GenerateEvent::kAccepted));
  EXPECT_EQ(Leave(&context_, reader.get()), grpc::CANCELLED);
  EXPECT_TRUE(Soon([&] { return metrics_.requests(RequestOutcome::kCancelled).value() == 1; }));
  EXPECT_FALSE(engine_->idle());  // the running one goes on
  EXPECT_EQ(Leave(&running_context, running.get()), grpc::CANCELLED);
  ExpectNothingIsLeft();
}

TEST_F(AbandonedStreamTest, WhileItsPromptIsComputed) {
  v1::GenerateRequest request = LongRequest();
  request.clear_text();
  for (int i = 0; i < 400; ++i) request.mutable_token_ids()->add_ids(7);  // 25 steps
  const auto reader = inference_->GenerateStream(&context_, request);
  ASSERT_TRUE(ReadUntil(reader.get(), v1::GenerateEvent::kAccepted));
  EXPECT_EQ(Leave(&context_, reader.get()), grpc::CANCELLED);
  ExpectNothingIsLeft();
  EXPECT_EQ(metrics_.requests(RequestOutcome::kCancelled).value(), 1);
}

TEST_F(AbandonedStreamTest, WhileTokensFlow) {
  const auto reader = inference_->GenerateStream(&context_, LongRequest());
  ASSERT_TRUE(ReadUntil(reader.get(), v1::GenerateEvent::kTokens));
  EXPECT_EQ(Leave(&context_, reader.get()), grpc::CANCELLED);
  ExpectNothingIsLeft();
  EXPECT_EQ(metrics_.requests(RequestOutcome::kCancelled).value(), 1);
}

TEST_F(AbandonedStreamTest, WhenAllIsMadeAndNothingWasRead) {
  const auto reader = inference_->GenerateStream(&context_, ShortRequest(20));
  EXPECT_TRUE(Soon([&] { return metrics_.requests(RequestOutcome::kLength).value() == 1; }));
  Leave(&context_, reader.get());
  ExpectNothingIsLeft();
  EXPECT_EQ(Ended(), 2);  // it ended once, by its length
}

TEST_F(AbandonedStreamTest, AfterItWasAborted) {
  v1::GenerateRequest request = LongRequest();
  request.set_request_id("victim");
  const auto reader = inference_->GenerateStream(&context_, request);
  ASSERT_TRUE(ReadUntil(reader.get(), v1::GenerateEvent::kTokens));
  grpc::ClientContext call;
  v1::AbortRequest victim;
  v1::AbortResponse response;
  victim.set_request_id("victim");
  ASSERT_TRUE(admin_->Abort(&call, victim, &response).ok());
  EXPECT_EQ(Leave(&context_, reader.get()), grpc::CANCELLED);
  ExpectNothingIsLeft();
  EXPECT_EQ(Ended(), 2);
}

TEST_F(AbandonedStreamTest, ByADeadlineInEveryState) {
  for (int milliseconds = 0; milliseconds < 60; milliseconds += 3) {
    const grpc::Status status = Stream(LongRequest(), absl::Milliseconds(milliseconds)).status;
    EXPECT_EQ(status.error_code(), grpc::DEADLINE_EXCEEDED) << milliseconds;
  }
  ExpectNothingIsLeft();
}

TEST_F(AbandonedStreamTest, ByAConnectionThatIsLost) {
  auto reader = inference_->GenerateStream(&context_, LongRequest());
  ASSERT_TRUE(ReadUntil(reader.get(), v1::GenerateEvent::kTokens));
  // Calls that a shutdown cuts off see the end of the connection, as after a lost one.
  server_->Shutdown();
  for (v1::GenerateEvent event; reader->Read(&event);) {
  }
  EXPECT_FALSE(reader->Finish().ok());
  EXPECT_TRUE(IdleSoon());
  EXPECT_TRUE(Soon([&] { return dispatcher_.num_readers() == 0; }));
}

TEST_F(AbandonedStreamTest, UnaryCallsInTheQueueAndWhileTheyRun) {
  const auto start = [&](grpc::ClientContext* context) {
    return std::async(std::launch::async, [this, context] {
      v1::GenerateResponse response;
      return inference_->Generate(context, LongRequest(), &response).error_code();
    });
  };
  grpc::ClientContext queued_context;
  auto running = start(&context_);
  ASSERT_TRUE(Soon([&] { return engine_->load().running == 1; }));
  auto queued = start(&queued_context);
  ASSERT_TRUE(Soon([&] { return engine_->load().queued == 1; }));
  queued_context.TryCancel();
  EXPECT_EQ(queued.get(), grpc::CANCELLED);
  context_.TryCancel();
  EXPECT_EQ(running.get(), grpc::CANCELLED);
  ExpectNothingIsLeft();
  EXPECT_EQ(metrics_.requests(RequestOutcome::kCancelled).value(), 2);
}

}  // namespace
}  // namespace condense
