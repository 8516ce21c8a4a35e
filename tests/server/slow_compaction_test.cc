// A compactor that is far too slow for the machine: the guard holds it back, and requests do not
// wait for it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/server/server_fixture.h"
#include "tests/support/fault_backend.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

constexpr int kClients = 4;
constexpr int kGenerated = 250;

class SlowCompactionTest : public ServerTest {
 protected:
  void StartSlow() {
    EngineConfig config;
    config.compression = MakeCompression("balanced").value();
    config.compaction.swap_every = 2;
    config.guard = true;
    config.guard_limits.evaluation_window = absl::Milliseconds(100);
    config.guard_limits.holding_dwell = absl::Minutes(1);
    config.guard_limits.first_token.warning = 100;
    config.guard_limits.first_token.limit = 200;
    config.guard_limits.memory_fluctuation.warning = 1000;
    config.guard_limits.memory_fluctuation.limit = 2000;
    // As many threads as cores, so that the worker takes its time from them.
    auto cpu = MakeBackend({.kind = "cpu", .num_threads = 0});
    ASSERT_TRUE(cpu.ok()) << cpu.status();
    auto backend = std::make_unique<FaultBackend>(*std::move(cpu));
    faults_ = backend.get();
    Start(config, {}, std::move(backend));
  }

  // Of the prompt as many tokens as generated ones are not there yet.
  bool Ask(const char* preset) {
    v1::GenerateRequest request = ShortRequest(kGenerated);
    request.clear_text();
    for (int i = 0; i < 240; ++i) request.mutable_token_ids()->add_ids(5 + i * 7 % 250);
    request.mutable_compression()->set_preset(preset);
    v1::GenerateResponse response;
    return Generate(request, &response).ok() && response.usage().completion_tokens() == kGenerated;
  }

  // Tokens per second of all clients together, until `done`, each at least one request.
  double Rate(const char* preset, const std::function<bool()>& done) {
    std::atomic<int> requests{0}, failures{0};
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> clients;
    for (int i = 0; i < kClients; ++i) {
      clients.emplace_back([&] {
        do {
          ++(Ask(preset) ? requests : failures);
        } while (!done());
      });
    }
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(failures, 0);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    return requests * kGenerated / seconds.count();
  }

  v1::CompressionState State() {
    grpc::ClientContext context;
    v1::GetCompressionResponse response;
    EXPECT_TRUE(admin_->GetCompression(&context, {}, &response).ok());
    return response.state();
  }

  FaultBackend* faults_ = nullptr;  // the engine's
};

TEST_F(SlowCompactionTest, IsHeldBackAndSlowsNobodyDown) {
  StartSlow();
  const auto at_once = [] { return true; };
  Rate("off", at_once);
  const double off = Rate("off", at_once);
  faults_->SlowWorkerOps(std::chrono::milliseconds(30));
  const absl::Time until = absl::Now() + absl::Seconds(60);
  std::atomic<bool> held{false};
  const double slowed = Rate("balanced", [&] {
    if (State().mode() == "holding") held = true;
    return held || absl::Now() > until;
  });
  EXPECT_TRUE(held);
  EXPECT_THAT(State().mode_reason(), HasSubstr("merge latency"));
  EXPECT_GT(metrics_.guard_reading(GuardMetric::kMergeLatency).value(), 0.002);
  EXPECT_THAT(metrics_.Serialize(),
              HasSubstr("condense_guard_mode{model=\"tiny\",mode=\"holding\"} 1"));
  // Every step pauses for 2 ms, so that a busy machine hardly moves either rate.
  EXPECT_GT(slowed, 0.5 * off);
}

}  // namespace
}  // namespace condense
