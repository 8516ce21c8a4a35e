#include "tests/tools/fake_server.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <thread>

#include "absl/strings/str_format.h"
#include "condense/v1/admin.grpc.pb.h"
#include "condense/v1/inference.grpc.pb.h"
#include "condense/v1/info.grpc.pb.h"
#include "condense/v1/text.grpc.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "kernels/base/mutex.h"

namespace condense {
namespace {

using Writer = grpc::ServerWriter<v1::GenerateEvent>;

constexpr int32_t kVocabulary = 1000;

v1::GenerateEvent TokenEventOf(const std::string& text, int32_t id, bool logprobs) {
  v1::GenerateEvent event;
  event.mutable_tokens()->set_text(text);
  v1::TokenInfo* token = event.mutable_tokens()->add_tokens();
  token->set_token_id(id);
  if (!logprobs) return event;
  token->set_logprob(-0.25f);
  v1::TokenLogprob* other = token->add_top();
  other->set_token_id(id + 1);
  other->set_logprob(-2.5f);
  other->set_token_bytes("\xc3");  // half a character
  return event;
}

void WriteFinished(const v1::GenerateRequest& request, int32_t tokens, Writer* writer) {
  v1::GenerateEvent event;
  auto* finished = event.mutable_finished();
  finished->set_reason(request.stopping().has_max_tokens() ? v1::FINISH_REASON_LENGTH
                                                           : v1::FINISH_REASON_STOP);
  finished->mutable_usage()->set_prompt_tokens(request.token_ids().ids_size());
  finished->mutable_usage()->set_completion_tokens(tokens);
  finished->mutable_receipt()->set_ratio(1.0);
  finished->mutable_receipt()->set_preset(request.has_compression() ? request.compression().preset()
                                                                    : "off");
  finished->mutable_receipt()->set_bytes_held(100);
  finished->mutable_receipt()->set_bytes_16bit(250);
  finished->mutable_receipt()->set_min_hit_ratio(1.0);
  writer->Write(event);
}

grpc::Status WithRetryInfo(grpc::StatusCode code, const std::string& message) {
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(1);
  google::rpc::Status details;
  details.add_details()->PackFrom(retry);
  return {code, message, details.SerializeAsString()};
}

class InferenceService final : public v1::Inference::Service {
 public:
  grpc::Status GenerateStream(grpc::ServerContext* context, const v1::GenerateRequest* request,
                              Writer* writer) override {
    {
      MutexLock lock(&mutex_);
      requests_.push_back(*request);
    }
    const std::string said = LastText(*request);
    const grpc::Status refusal = Refusal(said);
    if (!refusal.ok()) return refusal;
    v1::GenerateEvent accepted;
    accepted.mutable_accepted()->set_request_id("fake-1");
    accepted.mutable_accepted()->set_seed(42);
    writer->Write(accepted);
    if (said == "forever") return Forever(context, writer);
    Answer(*request, said, writer);
    return grpc::Status::OK;
  }

  std::vector<v1::GenerateRequest> requests() {
    MutexLock lock(&mutex_);
    return requests_;
  }
  int cancelled() {
    MutexLock lock(&mutex_);
    return cancelled_;
  }

 private:
  static std::string LastText(const v1::GenerateRequest& request) {
    if (!request.has_chat()) return request.text();
    return request.chat().messages(request.chat().messages_size() - 1).content();
  }

  static grpc::Status Refusal(const std::string& said) {
    using grpc::StatusCode;
    if (said == "busy") return WithRetryInfo(StatusCode::RESOURCE_EXHAUSTED, "the queue is full");
    if (said == "too long") return {StatusCode::RESOURCE_EXHAUSTED, "it can never fit"};
    if (said == "draining") return WithRetryInfo(StatusCode::UNAVAILABLE, "draining");
    if (said == "bad") return {StatusCode::INVALID_ARGUMENT, "temperature is -1; limit 0..100"};
    return grpc::Status::OK;
  }

  grpc::Status Forever(grpc::ServerContext* context, Writer* writer) {
    while (!context->IsCancelled() && writer->Write(TokenEventOf("x", 7, false))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    MutexLock lock(&mutex_);
    ++cancelled_;
    return grpc::Status::CANCELLED;
  }

  static void Answer(const v1::GenerateRequest& request, const std::string& said, Writer* writer) {
    const bool logprobs = request.output().has_logprobs();
    std::vector<std::string> pieces = {"Hello", " world"};
    if (said == "escape") pieces = {"a\x1b[31mb"};
    if (request.has_chat()) {
      pieces = {absl::StrFormat("%d: ", request.chat().messages_size()), said};
    }
    if (request.stopping().has_max_tokens()) {
      pieces.assign(request.stopping().max_tokens(), "x");
    }
    int32_t id = 10;
    for (const std::string& piece : pieces) writer->Write(TokenEventOf(piece, id++, logprobs));
    WriteFinished(request, static_cast<int32_t>(pieces.size()), writer);
  }

  Mutex mutex_;
  std::vector<v1::GenerateRequest> requests_ ABSL_GUARDED_BY(mutex_);
  int cancelled_ ABSL_GUARDED_BY(mutex_) = 0;
};

class InfoService final : public v1::Info::Service {
  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::GetServerInfoResponse* response) override {
    response->set_version("9.9");
    response->set_state(v1::GetServerInfoResponse::STATE_SERVING);
    response->set_compression_mode("compacting");
    response->set_compression_preset("light");
    response->set_compression_policy("none");
    response->set_compression_ratio(2.8);
    response->set_compression_mode_reason("hit ratio \x1b[31m0.97 is fine");
    v1::GuardReading* drift = response->add_guard_readings();
    drift->set_guard("drift");
    drift->set_value(0.004);
    drift->set_samples(12);
    drift->set_lower(0.001);
    drift->set_upper(0.007);
    drift->set_warning(0.01);
    drift->set_limit(0.02);
    drift->set_min_samples(8);
    drift->set_level("clear");
    v1::GuardReading* canary = response->add_guard_readings();
    canary->set_guard("canary");
    canary->set_warning(0.95);
    canary->set_limit(0.9);
    canary->set_min_samples(5);
    canary->set_level("clear");
    (*response->mutable_limits())["stop"] = 16;
    return grpc::Status::OK;
  }
  grpc::Status GetModelInfo(grpc::ServerContext*, const v1::GetModelInfoRequest*,
                            v1::GetModelInfoResponse* response) override {
    response->set_name("fake model");
    response->set_vocab_size(kVocabulary);
    response->set_chat_template_family("chatml");
    return grpc::Status::OK;
  }
  grpc::Status GetLoad(grpc::ServerContext*, const v1::GetLoadRequest*,
                       v1::GetLoadResponse* response) override {
    response->set_running(3);
    response->set_kv_bytes_used(1 << 20);
    response->set_kv_bytes_total(4 << 20);
    response->set_kv_bytes_16bit(3 << 20);
    response->set_kv_ratio(3.0);
    response->set_kv_bytes_staging(2 << 10);
    response->set_kv_bytes_slack(5 << 10);
    response->set_compaction_jobs_out(6);
    response->mutable_swaps()->set_accepted(1234);
    response->mutable_swaps()->set_refused(7);
    return grpc::Status::OK;
  }
};

class TextService final : public v1::Text::Service {
  grpc::Status Tokenize(grpc::ServerContext*, const v1::TokenizeRequest*,
                        v1::TokenizeResponse* response) override {
    for (int32_t id = 100; id < 200; ++id) response->add_token_ids(id);
    return grpc::Status::OK;
  }
};

class AdminService final : public v1::Admin::Service {
 public:
  std::vector<v1::SetCompressionRequest> changes() {
    MutexLock lock(&mutex_);
    return changes_;
  }

 private:
  grpc::Status SetCompression(grpc::ServerContext*, const v1::SetCompressionRequest* request,
                              v1::SetCompressionResponse* response) override {
    MutexLock lock(&mutex_);
    changes_.push_back(*request);
    if (request->compression().ratio() == 99) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "compression.ratio is 99; must be in [1, 16]"};
    }
    if (request->has_compression()) {
      state_.set_preset(request->compression().preset());
      state_.set_policy(request->compression().policy());
      state_.set_ratio(request->compression().ratio());
    }
    if (request->has_paused()) state_.set_paused(request->paused());
    if (request->has_mode()) forced_ = request->mode();
    *response->mutable_state() = State();
    return grpc::Status::OK;
  }
  grpc::Status GetCompression(grpc::ServerContext*, const v1::GetCompressionRequest*,
                              v1::GetCompressionResponse* response) override {
    MutexLock lock(&mutex_);
    *response->mutable_state() = State();
    return grpc::Status::OK;
  }

  v1::CompressionState State() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    v1::CompressionState state = state_;
    state.set_mode(state_.paused() ? "holding" : forced_.empty() ? "compacting" : forced_);
    if (!forced_.empty()) state.set_mode_reason("an operator wants it so");
    state.add_formats("k6v4");
    state.set_bytes_held(1 << 20);
    state.set_bytes_16bit(3 << 20);
    state.set_ratio_held(3.0);
    state.set_staging_bytes(2 << 10);
    state.set_slack_bytes(5 << 10);
    state.set_jobs_out(6);
    state.mutable_swaps()->set_accepted(1234);
    return state;
  }

  Mutex mutex_;
  v1::CompressionState state_ ABSL_GUARDED_BY(mutex_);
  std::string forced_ ABSL_GUARDED_BY(mutex_);  // mode
  std::vector<v1::SetCompressionRequest> changes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

struct FakeServer::Impl {
  InferenceService inference;
  InfoService info;
  TextService text;
  AdminService admin;
  std::unique_ptr<grpc::Server> server;
};

FakeServer::FakeServer() : impl_(std::make_unique<Impl>()) {
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&impl_->inference);
  builder.RegisterService(&impl_->info);
  builder.RegisterService(&impl_->text);
  builder.RegisterService(&impl_->admin);
  impl_->server = builder.BuildAndStart();
  address_ = absl::StrFormat("127.0.0.1:%d", port);
}

FakeServer::~FakeServer() { impl_->server->Shutdown(std::chrono::system_clock::now()); }

std::vector<v1::GenerateRequest> FakeServer::requests() const {
  return impl_->inference.requests();
}

std::vector<v1::SetCompressionRequest> FakeServer::compression_changes() const {
  return impl_->admin.changes();
}

int FakeServer::cancelled() const { return impl_->inference.cancelled(); }

}  // namespace condense
