#ifndef CONDENSE_TESTS_SERVER_SERVER_FIXTURE_H_
#define CONDENSE_TESTS_SERVER_SERVER_FIXTURE_H_

// A server over the tiny model in the test's own process, and a client of it.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "condense/v1/admin.grpc.pb.h"
#include "condense/v1/inference.grpc.pb.h"
#include "condense/v1/info.grpc.pb.h"
#include "condense/v1/text.grpc.pb.h"
#include "engine/engine.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "metrics/metrics.h"
#include "server/server.h"
#include "server/stream_dispatcher.h"

namespace condense {

// A request that goes on until it is ended from outside: as long as the context allows.
inline v1::GenerateRequest LongRequest() {
  v1::GenerateRequest request;
  request.set_text("hello");
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_sampling()->set_seed(1);
  return request;
}

inline v1::GenerateRequest ShortRequest(int tokens) {
  v1::GenerateRequest request = LongRequest();
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(tokens);
  return request;
}

// All that a stream carried, and how the call ended.
struct Streamed {
  std::vector<v1::GenerateEvent> events;
  std::string text;
  std::vector<int32_t> ids;
  grpc::Status status;
};

class ServerTest : public ::testing::Test {
 protected:
  ~ServerTest() override {
    if (server_ != nullptr) server_->Shutdown();
  }

  // `backend`: null for the CPU's, with one thread.
  void Start(EngineConfig config = {}, ServerOptions options = {},
             std::unique_ptr<Backend> backend = nullptr) {
    config.model_path = CONDENSE_TEST_DATA "/tiny/llama-f32.gguf";
    config.model_name = "tiny";
    config.backend.num_threads = 1;
    if (config.kv_memory_bytes == 0) config.kv_memory_bytes = 64 << 20;
    // The tiny model would be through a request before a client can act on it.
    config.on_published = [this, pause = step_pause_] {
      dispatcher_.Notify();
      absl::SleepFor(pause);
    };
    auto engine = Engine::Make(config, &metrics_, std::move(backend));
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    options.listen = "127.0.0.1:0";
    auto server = Server::Start(options, engine_.get(), &dispatcher_, &metrics_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    Connect({});
  }

  void Connect(const grpc::ChannelArguments& arguments) {
    channel_ = grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(),
                                         arguments);
    inference_ = v1::Inference::NewStub(channel_);
    text_ = v1::Text::NewStub(channel_);
    info_ = v1::Info::NewStub(channel_);
    admin_ = v1::Admin::NewStub(channel_);
    health_ = grpc::health::v1::Health::NewStub(channel_);
  }

  static void SetTimeout(grpc::ClientContext* context, absl::Duration timeout) {
    context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
  }

  Streamed Stream(const v1::GenerateRequest& request, absl::Duration timeout = absl::Seconds(60)) {
    grpc::ClientContext context;
    SetTimeout(&context, timeout);
    auto reader = inference_->GenerateStream(&context, request);
    Streamed streamed;
    for (v1::GenerateEvent event; reader->Read(&event);) {
      streamed.events.push_back(event);
      streamed.text += event.tokens().text();
      for (const v1::TokenInfo& token : event.tokens().tokens()) {
        streamed.ids.push_back(token.token_id());
      }
    }
    streamed.status = reader->Finish();
    return streamed;
  }

  grpc::Status Generate(const v1::GenerateRequest& request, v1::GenerateResponse* response) {
    grpc::ClientContext context;
    SetTimeout(&context, absl::Seconds(60));
    return inference_->Generate(&context, request, response);
  }

  std::string Health(const std::string& service) {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    grpc::health::v1::HealthCheckResponse response;
    request.set_service(service);
    const grpc::Status status = health_->Check(&context, request, &response);
    if (!status.ok()) return status.error_code() == grpc::NOT_FOUND ? "NOT_FOUND" : "error";
    return grpc::health::v1::HealthCheckResponse::ServingStatus_Name(response.status());
  }

  static double RetryDelay(const grpc::Status& status) {
    google::rpc::Status details;
    google::rpc::RetryInfo retry;
    if (!details.ParseFromString(status.error_details()) || details.details_size() != 1 ||
        !details.details(0).UnpackTo(&retry)) {
      return 0;
    }
    return static_cast<double>(retry.retry_delay().seconds());
  }

  // Whether it becomes true; a busy machine has time enough.
  static bool Soon(const std::function<bool()>& condition) {
    const absl::Time until = absl::Now() + absl::Seconds(20);
    while (!condition()) {
      if (absl::Now() > until) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }

  bool IdleSoon() {
    return Soon([this] { return engine_->idle() && engine_->load().kv_bytes_used == 0; });
  }

  absl::Duration step_pause_ = absl::Milliseconds(2);
  StreamDispatcher dispatcher_;
  Metrics metrics_{"tiny"};
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> inference_;
  std::unique_ptr<v1::Text::Stub> text_;
  std::unique_ptr<v1::Info::Stub> info_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

}  // namespace condense

#endif  // CONDENSE_TESTS_SERVER_SERVER_FIXTURE_H_
