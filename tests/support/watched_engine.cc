#include "tests/support/watched_engine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <utility>

#include "absl/time/clock.h"
#include "tests/support/gguf_writer.h"

namespace condense {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

// The tiny model with a longer context.
const std::string& LongContextModel() {
  static const auto* const kPath = [] {
    GgufWriter writer = GgufWriter::FromFile(CONDENSE_TEST_DATA "/tiny/llama-f32.gguf");
    writer.SetU32("llama.context_length", 4096);
    // ctest runs each case in a process of its own.
    auto* path = new std::string(::testing::TempDir() + "/long_context." +
                                 std::to_string(getpid()) + ".gguf");
    std::ofstream(*path, std::ios::binary) << writer.Bytes();
    return path;
  }();
  return *kPath;
}

}  // namespace

EngineConfig CompactingConfig() {
  EngineConfig config;
  config.model_path = LongContextModel();
  config.kv_memory_bytes = 16 << 20;
  config.backend = {.kind = "cpu", .num_threads = 1};
  config.compaction.enabled = true;
  config.poison_freed_kv = true;
  return config;
}

Request CompactedRequest(std::string id, int prompt_tokens, int max_tokens,
                         std::string_view preset) {
  std::mt19937 random(static_cast<uint32_t>(prompt_tokens));
  std::vector<TokenId> prompt(prompt_tokens);
  for (TokenId& token : prompt) token = static_cast<TokenId>(3 + random() % 280);
  Request request = GreedyRequest(std::move(id), std::move(prompt), max_tokens);
  request.num_logprobs = 0;
  request.compression = MakeCompression(preset).value();
  return request;
}

WatchedEngine::WatchedEngine(EngineConfig config, std::unique_ptr<Backend> backend,
                             Metrics* metrics) {
  config.on_published = [this] { OnPublished(); };
  auto engine = Engine::Make(std::move(config), metrics, std::move(backend));
  EXPECT_TRUE(engine.ok()) << engine.status();
  if (!engine.ok()) return;
  engine_ = *std::move(engine);
  MutexLock lock(&mutex_);
  watched_ = engine_.get();
}

void WatchedEngine::SetWatch(Watch watch) {
  MutexLock lock(&mutex_);
  watch_ = std::move(watch);
}

void WatchedEngine::Destroy() {
  {
    MutexLock lock(&mutex_);
    watched_ = nullptr;
  }
  engine_.reset();
}

void WatchedEngine::OnPublished() {
  MutexLock lock(&mutex_);
  if (watched_ == nullptr) return;
  const EngineLoad load = watched_->load();
  // However busy the machine is, the worker gets time before the tokens run out.
  if (load.jobs_out > 0) absl::SleepFor(absl::Milliseconds(1));
  if (watch_) watch_(load);
}

Answer WatchedEngine::RunUntil(Request request,
                               const std::function<bool(const EngineLoad&)>& enough,
                               EngineLoad* last) {
  bool reached = false;
  SetWatch([&, id = request.id](const EngineLoad& load) {
    if (reached || !enough(load)) return;
    reached = true;
    *last = load;
    EXPECT_TRUE(engine_->Abort(id));
  });
  Answer answer = Run(std::move(request));
  SetWatch({});
  EXPECT_TRUE(reached) << "after " << answer.ids.size()
                       << " tokens: " << engine_->load().swaps.accepted << " swaps accepted, "
                       << engine_->load().swaps.refused << " refused";
  return answer;
}

EngineLoad WatchedEngine::Await(const std::function<bool(const EngineLoad&)>& holds) {
  const absl::Time until = absl::Now() + kPatience;
  EngineLoad load = engine_->load();
  while (!holds(load) && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(1));
    load = engine_->load();
  }
  EXPECT_TRUE(holds(load)) << "waited for " << kPatience;
  return load;
}

EngineLoad WatchedEngine::Settled() {
  const EngineLoad load = Await([](const EngineLoad& l) {
    return l.kv_bytes_used == 0 && l.staging_bytes == 0 && l.jobs_out == 0;
  });
  EXPECT_EQ(load.kv_bytes_used, 0);
  EXPECT_EQ(load.staging_bytes, 0);
  EXPECT_EQ(load.slack_bytes, 0);
  EXPECT_EQ(load.jobs_out, 0);
  EXPECT_EQ(load.logical_tokens, 0);
  return load;
}

}  // namespace condense
