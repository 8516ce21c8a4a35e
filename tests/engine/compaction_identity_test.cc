// Compaction that must not be noticed: where nothing is lost, nothing changes, bit for bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "cache/build_recipe.h"
#include "cache/policies/registry.h"
#include "engine/batch.h"
#include "engine/gguf.h"
#include "engine/model.h"
#include "tests/support/engine_harness.h"
#include "tests/support/watched_engine.h"

namespace condense {
namespace {

// A model with a cache that has a staging reserve; nobody else uses either.
class SwappedModel {
 public:
  explicit SwappedModel(const std::string& name) {
    const auto file = GgufFile::Open(CONDENSE_TEST_DATA "/tiny/" + name + ".gguf").value();
    model_ = Model::Load(backend_.get(), *file, kStepTokens).value();
    EXPECT_TRUE(model_->MakePositionTables(1024).ok());
    cache_ = KvCache::Make(backend_.get(), model_->MakeKvLayout(32),
                           {.arena_bytes = 16 << 20,
                            .step_tokens = kStepTokens,
                            .staging_bytes = 4 << 20,
                            .poison_freed = true})
                 .value();
  }

  std::unique_ptr<KvSequence> Open() { return cache_->Open(); }
  void Release(KvSequence* kv) { cache_->Release(kv); }
  int64_t bytes_out() const {
    return cache_->Stats().used_bytes + cache_->Stats().staging_bytes + cache_->Stats().slab_bytes;
  }

  // Logits [V] of the last token.
  std::vector<float> Run(KvSequence* kv, const std::vector<TokenId>& tokens) {
    const auto count = static_cast<int32_t>(tokens.size());
    EXPECT_TRUE(cache_->TryReserve(kv, count));
    Batch batch;
    batch.tokens = tokens;
    for (int32_t i = 0; i < count; ++i) {
      batch.positions.push_back(static_cast<int32_t>(kv->committed_tokens) + i);
    }
    batch.sequences = {{.first_row = 0, .num_tokens = count}};
    batch.kv = {kv};
    batch.logit_rows = {{.row = count - 1}};
    model_->Forward(&batch, cache_.get());
    const float* logits = model_->Logits(batch, 0, 1);
    std::vector<float> read(model_->config().vocab);
    backend_->CopyToHost(reinterpret_cast<std::byte*>(read.data()),
                         reinterpret_cast<const std::byte*>(logits),
                         static_cast<int64_t>(read.size() * sizeof(float)));
    EXPECT_TRUE(backend_->Synchronize().ok());
    cache_->Commit(kv, count);
    return read;
  }

  // Replaces blocks [first, first + num) of every unit that may be compacted by what `policy` makes
  // of them in 16 bits. The number of units.
  int SwapAll(KvSequence* kv, const Policy& policy, KvBlockFlags flags, int32_t first,
              int32_t num) {
    int swapped = 0;
    for (int32_t unit = 0; unit < cache_->layout().num_units(); ++unit) {
      if (cache_->layout().window(unit / cache_->layout().num_kv_heads) > 0) continue;
      Swap(kv, policy, flags, unit, first, num);
      ++swapped;
    }
    return swapped;
  }

 private:
  static constexpr int32_t kStepTokens = 512;

  void Swap(KvSequence* kv, const Policy& policy, KvBlockFlags flags, int32_t unit, int32_t first,
            int32_t num) {
    const BlockTable& table = kv->tables[unit];
    std::vector<KvBuildSource> sources;
    std::vector<int32_t> positions;
    for (int32_t i = first; i < first + num; ++i) {
      sources.push_back({table.blocks()[i], table.first_position(i)});
      for (int32_t e = 0; e < 32; ++e) positions.push_back(table.first_position(i) + e);
    }
    const size_t n = positions.size();
    UnitEvidence evidence{.mean = std::vector<float>(n, 1e-3f),
                          .window_max = std::vector<float>(n, 1e-3f),
                          .steps = std::vector<int32_t>(n, 100),
                          .idle_steps = std::vector<int32_t>(n, 0),
                          .marked = std::vector<uint8_t>(n, 0)};
    const UnitView view{.entries = {.positions = positions, .protection = {.end_position = 1000}},
                        .evidence = &evidence,
                        .head_dim = model_->config().head_dim};
    // As far as it would like to go.
    const MergePlan plan = policy.Plan(view, {.target_bytes = 1, .min_tokens = 0});
    std::optional<KvStage> stage =
        cache_->TryStage(kv, unit, first, num, KvFormat::kK16V16, flags, num);
    ASSERT_TRUE(stage.has_value());
    const BuildRecipe recipe = MakeBuildRecipe(plan, stage->blocks, 32).value();
    ASSERT_TRUE(
        backend_
            ->KvBuild({.arena = cache_->arena(),
                       .shape = cache_->layout().block,
                       .sources = sources.data(),
                       .num_sources = num,
                       .members = recipe.members.data(),
                       .entries = recipe.entries.data(),
                       .num_entries = static_cast<int32_t>(recipe.entries.size()),
                       .blocks = recipe.blocks.data(),
                       .num_blocks = static_cast<int32_t>(recipe.blocks.size()),
                       .positions = model_->Positions(unit / cache_->layout().num_kv_heads)})
            .ok());
    EXPECT_TRUE(cache_->Swap(stage->ticket, recipe.blocks));
  }

  std::unique_ptr<Backend> backend_ = MakeBackend({.kind = "cpu", .num_threads = 1}).value();
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> cache_;
};

class NoneIn16BitsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(NoneIn16BitsTest, SwappedBlocksChangeNoBitOfTheLogits) {
  const auto none = MakePolicy("none").value();
  for (const int flags : {0, int{kKvRun}, kKvBias | kKvPosition | kKvCount}) {
    SCOPED_TRACE(::testing::Message() << "flags " << flags);
    SwappedModel model(GetParam());
    std::vector<TokenId> prompt;
    for (int32_t i = 0; i < 300; ++i) prompt.push_back(3 + i * i * 31 % 250);
    const auto plain = model.Open(), swapped = model.Open();
    ASSERT_EQ(model.Run(swapped.get(), prompt), model.Run(plain.get(), prompt));
    EXPECT_GT(model.SwapAll(swapped.get(), *none, static_cast<KvBlockFlags>(flags), 1, 7), 0);
    for (int32_t step = 0; step < 40; ++step) {
      const std::vector<TokenId> token = {3 + step * 17 % 250};
      ASSERT_EQ(model.Run(swapped.get(), token), model.Run(plain.get(), token)) << step;
    }
    model.Release(plain.get());
    model.Release(swapped.get());
    EXPECT_EQ(model.bytes_out(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, NoneIn16BitsTest,
                         ::testing::Values("llama-f32", "llama-q4_k", "qwen2", "qwen3",
                                           "gemma3-pattern"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

Compression NoneIn16Bits() {
  Compression compression = MakeCompression("balanced", "none").value();
  compression.formats = {KvFormat::kK16V16};
  return compression;
}

// Jobs are posted and carried out; a back as large as its front is not taken.
TEST(CompactionIdentityTest, PolicyNoneIn16BitsEqualsNoCompaction) {
  EngineConfig plain_config = CompactingConfig();
  plain_config.compaction.enabled = false;
  for (const Compression& compression :
       {NoneIn16Bits(), MakeCompression("balanced", "none", 1.0).value()}) {
    WatchedEngine engine(CompactingConfig());
    WatchedEngine plain(plain_config);
    Request request = CompactedRequest("r", 640, 120, "off");
    request.sampling.temperature = 1.0f;
    request.sampling.seed = 11;
    request.compression = compression;
    const Answer answer = engine.Run(request);
    request.compression.reset();
    const Answer expected = plain.Run(request);
    EXPECT_EQ(answer.ids.size(), 120u);
    EXPECT_EQ(answer.ids, expected.ids);
    EXPECT_EQ(answer.logprobs, expected.logprobs);  // bit for bit
    EXPECT_EQ(answer.last.receipt.bytes_held, answer.last.receipt.bytes_16bit);
    const SwapTotals swaps = engine.Settled().swaps;
    EXPECT_EQ(swaps.accepted + swaps.refused + swaps.failed, 0u);
    EXPECT_EQ(swaps.useless >= static_cast<uint64_t>(kTinyUnits), compression.active());
  }
}

// What a request answers when each of its turns finds the results of the turn before, however busy
// the machine is, so that two runs swap at the same steps.
Answer RunInStep(bool poison, std::string_view preset, SwapTotals* swaps) {
  EngineConfig config = CompactingConfig();
  config.poison_freed_kv = poison;
  config.compaction.swap_every = 32;
  WatchedEngine engine(config);
  absl::Duration patience = absl::Milliseconds(1);
  int32_t steps_out = 0;
  engine.SetWatch([&](const EngineLoad& load) {
    steps_out = load.jobs_out > 0 ? steps_out + 1 : 0;
    EXPECT_LT(steps_out, 31) << "results are late: two runs cannot be compared";
    patience = load.jobs_out > 0 ? std::min(2 * patience, absl::Seconds(1)) : absl::Milliseconds(1);
    if (load.jobs_out > 0) absl::SleepFor(patience);
  });
  Answer answer = engine.Run(CompactedRequest("r", 640, 300, preset));
  engine.SetWatch({});
  *swaps = engine.Settled().swaps;
  return answer;
}

// Every freed block and every slot that was not written holds NaN; with jobs, swaps, orphans and
// windows of blocks that come and go, nobody reads one.
TEST(CompactionIdentityTest, PoisonedBuffersAreNeverRead) {
  for (const char* preset : {"lossless", "balanced"}) {
    SCOPED_TRACE(preset);
    SwapTotals swaps, poisoned_swaps;
    const Answer clean = RunInStep(false, preset, &swaps);
    const Answer poisoned = RunInStep(true, preset, &poisoned_swaps);
    EXPECT_GE(swaps.accepted, 2u * kTinyUnits);
    EXPECT_EQ(poisoned_swaps.accepted, swaps.accepted);
    EXPECT_EQ(poisoned_swaps.refused, swaps.refused);
    EXPECT_EQ(poisoned.ids.size(), 300u);
    EXPECT_EQ(poisoned.ids, clean.ids);
    EXPECT_EQ(poisoned.logprobs, clean.logprobs);  // bit for bit
    EXPECT_EQ(poisoned.last.receipt.bytes_held, clean.last.receipt.bytes_held);
  }
}

}  // namespace
}  // namespace condense
