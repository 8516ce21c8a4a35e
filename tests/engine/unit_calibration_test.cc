#include "engine/unit_calibration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "engine/batch.h"
#include "engine/gguf.h"

namespace condense {
namespace {

constexpr int32_t kSinks = 4;  // left out of the average
constexpr int32_t kStepTokens = 32;
constexpr int32_t kClusterWindow = 128;

struct Case {
  const char* model;
  int32_t num_tokens;
};

class UnitCalibrationTest : public ::testing::TestWithParam<Case> {
 protected:
  UnitCalibrationTest() {
    const auto file =
        GgufFile::Open(std::string(CONDENSE_TEST_DATA "/tiny/") + GetParam().model + ".gguf")
            .value();
    model_ = Model::Load(backend_.get(), *file, kStepTokens).value();
    cache_ = KvCache::Make(backend_.get(), model_->MakeKvLayout(32),
                           {.arena_bytes = 16 << 20, .step_tokens = kStepTokens})
                 .value();
    for (int32_t i = 0; i < GetParam().num_tokens; ++i) tokens_.push_back(3 + i * i * 31 % 250);
  }

  // All tokens in one sequence, one step each.
  std::unique_ptr<KvSequence> RunTokens() {
    std::unique_ptr<KvSequence> kv = cache_->Open();
    for (int32_t i = 0; i < GetParam().num_tokens; ++i) {
      EXPECT_TRUE(cache_->TryReserve(kv.get(), 1));
      Batch batch;
      batch.tokens = {tokens_[i]};
      batch.positions = {i};
      batch.sequences = {{.first_row = 0, .num_tokens = 1}};
      batch.kv = {kv.get()};
      model_->Forward(&batch, cache_.get());
      EXPECT_TRUE(backend_->Synchronize().ok());
      cache_->Commit(kv.get(), 1);
    }
    return kv;
  }

  // [n, D], turned back to position 0 by the definition of RoPE.
  std::vector<std::vector<double>> KeysBeforeRope(const KvSequence& kv, int32_t unit) {
    const int32_t head_dim = cache_->layout().block.head_dim;
    const ModelConfig& c = model_->config();
    const int32_t layer = unit / cache_->layout().num_kv_heads;
    std::vector<std::vector<double>> keys;
    int32_t left = kv.tables[unit].committed_entries();
    for (int32_t b = 0; left > 0; ++b) {
      KvBlockRef block = kv.tables[unit].blocks()[b];
      block.count = static_cast<uint16_t>(std::min(left, 32));
      left -= block.count;
      const KvBuildSource source{block, kv.tables[unit].first_position(b)};
      std::vector<float> read(block.count * head_dim);
      EXPECT_TRUE(backend_
                      ->KvRead({.arena = cache_->arena(),
                                .shape = cache_->layout().block,
                                .sources = &source,
                                .num_sources = 1,
                                .keys = read.data()})
                      .ok());
      for (int32_t i = 0; i < block.count; ++i) {
        std::vector<double> key(&read[i * head_dim], &read[i * head_dim] + head_dim);
        for (int32_t pair = 0; pair < head_dim / 2; ++pair) {
          const double angle = 32.0 * b + i;
          const double frequency =
              std::pow(c.theta(layer), -2.0 * pair / head_dim) / c.linear_factor(layer);
          double& x = key[First(pair)];
          double& y = key[Second(pair)];
          const double cos = std::cos(angle * frequency), sin = std::sin(angle * frequency);
          const double turned = x * cos + y * sin;
          y = y * cos - x * sin;
          x = turned;
        }
        keys.push_back(key);
      }
    }
    return keys;
  }
  int32_t First(int32_t pair) const {
    return model_->config().rope_pairing == RopePairing::kAdjacent ? 2 * pair : pair;
  }
  int32_t Second(int32_t pair) const {
    return model_->config().rope_pairing == RopePairing::kAdjacent
               ? 2 * pair + 1
               : pair + cache_->layout().block.head_dim / 2;
  }

  std::vector<double> NaiveMean(const KvSequence& kv, int32_t unit) {
    const auto keys = KeysBeforeRope(kv, unit);
    const int32_t first = GetParam().num_tokens > 2 * kSinks ? kSinks : 0;
    std::vector<double> mean(cache_->layout().block.head_dim);
    for (size_t i = first; i < keys.size(); ++i) {
      for (size_t d = 0; d < mean.size(); ++d) {
        mean[d] += keys[i][d] / static_cast<double>(keys.size() - first);
      }
    }
    return mean;
  }

  // Pairs stand as they are or at zero; those at zero are the weakest, as many as may go.
  void ExpectStrongestPairsOf(const std::vector<double>& naive, std::span<const float> mean) {
    double total = 0.0, kept = 0.0, weakest_kept = HUGE_VAL, strongest_gone = 0.0;
    for (int32_t pair = 0; pair < static_cast<int32_t>(naive.size()) / 2; ++pair) {
      const int32_t a = First(pair), b = Second(pair);
      const double energy = naive[a] * naive[a] + naive[b] * naive[b];
      total += energy;
      if (mean[a] == 0.0f && mean[b] == 0.0f) {
        strongest_gone = std::max(strongest_gone, energy);
        continue;
      }
      EXPECT_NEAR(mean[a], naive[a], 1e-4) << "pair " << pair;
      EXPECT_NEAR(mean[b], naive[b], 1e-4) << "pair " << pair;
      kept += energy;
      weakest_kept = std::min(weakest_kept, energy);
    }
    EXPECT_GE(kept, (kMeanEnergyKept - 1e-4) * total);
    EXPECT_LT(kept - weakest_kept, (kMeanEnergyKept + 1e-4) * total);
    EXPECT_LE(strongest_gone, weakest_kept + 1e-6 * total);
    EXPECT_LT(kept, total);  // some pair is weak in each of these models
  }

  std::unique_ptr<Backend> backend_ = MakeBackend({.kind = "cpu", .num_threads = 1}).value();
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> cache_;
  std::vector<TokenId> tokens_;
};

TEST_P(UnitCalibrationTest, MeansAreTheAveragesOfTheKeysBeforeRope) {
  const UnitCalibration calibration =
      MeasureUnits(backend_.get(), model_.get(), cache_.get(), tokens_, kStepTokens, kClusterWindow)
          .value();
  const std::vector<float>& means = calibration.means;
  EXPECT_EQ(cache_->Stats().slab_bytes, 0);
  EXPECT_EQ(cache_->Stats().logical_tokens, 0);
  const KvLayout& layout = cache_->layout();
  const int32_t head_dim = layout.block.head_dim;
  ASSERT_EQ(means.size(), static_cast<size_t>(layout.num_units() * head_dim));
  const std::unique_ptr<KvSequence> kv = RunTokens();
  int measured = 0;
  for (int32_t unit = 0; unit < layout.num_units(); ++unit) {
    SCOPED_TRACE(unit);
    const std::span<const float> mean(&means[unit * head_dim], head_dim);
    if (layout.window(unit / layout.num_kv_heads) > 0) {
      EXPECT_TRUE(std::all_of(mean.begin(), mean.end(), [](float x) { return x == 0.0f; }));
      continue;
    }
    ++measured;
    ExpectStrongestPairsOf(NaiveMean(*kv, unit), mean);
  }
  EXPECT_GT(measured, 0);
  cache_->Release(kv.get());
}

TEST_P(UnitCalibrationTest, RecallIsZeroWithoutARepetition) {
  const UnitCalibration calibration =
      MeasureUnits(backend_.get(), model_.get(), cache_.get(), tokens_, kStepTokens, kClusterWindow)
          .value();
  ASSERT_EQ(calibration.recall.size(), static_cast<size_t>(cache_->layout().num_units()));
  for (const float recall : calibration.recall) EXPECT_EQ(recall, 0.0f);
}

INSTANTIATE_TEST_SUITE_P(Models, UnitCalibrationTest,
                         ::testing::Values(Case{"llama-f32", 100}, Case{"llama-f32", 8},
                                           Case{"qwen3", 70}, Case{"llama-rope-linear", 40},
                                           Case{"gemma3-pattern", 100}),
                         [](const auto& info) {
                           std::string name =
                               info.param.model + ("_" + std::to_string(info.param.num_tokens));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// A model of random weights attends almost evenly, wherever facts stand; each share is one, of the
// 256 to 319 tokens that a query sees.
TEST(UnitCalibrationRecallTest, IsAShareOfAttention) {
  const auto backend = MakeBackend({.kind = "cpu", .num_threads = 1}).value();
  for (const char* name : {"llama-f32", "gemma3-pattern"}) {
    const auto file =
        GgufFile::Open(std::string(CONDENSE_TEST_DATA "/tiny/") + name + ".gguf").value();
    const auto model = Model::Load(backend.get(), *file, kStepTokens).value();
    const auto cache = KvCache::Make(backend.get(), model->MakeKvLayout(32),
                                     {.arena_bytes = 16 << 20, .step_tokens = kStepTokens})
                           .value();
    std::vector<TokenId> tokens;
    for (int32_t i = 0; i < 4 * kRepeatedTokens; ++i) tokens.push_back(3 + i * i * 31 % 250);
    const UnitCalibration calibration =
        MeasureUnits(backend.get(), model.get(), cache.get(), tokens, kStepTokens, kClusterWindow)
            .value();
    EXPECT_EQ(cache->Stats().slab_bytes, 0);
    const KvLayout& layout = cache->layout();
    for (int32_t unit = 0; unit < layout.num_units(); ++unit) {
      if (layout.window(unit / layout.num_kv_heads) > 0) {
        EXPECT_EQ(calibration.recall[unit], 0.0f) << name << unit;
      } else {
        EXPECT_GT(calibration.recall[unit], 0.1f / 320) << name << unit;
        EXPECT_LT(calibration.recall[unit], 10.0f / 256) << name << unit;
      }
    }
  }
}

// Which heads of SmolLM2-135M copy what followed an earlier occurrence, and which do not: one token
// beside the right place the first would get a few percent.
TEST(UnitCalibrationDemoGoldenTest, FindsTheUnitsThatCopy) {
  const std::string path = CONDENSE_MODELS "/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << path << " is not there; scripts/fetch_model smollm2 brings it";
  }
  const auto file = GgufFile::Open(path).value();
  const auto tokenizer = Tokenizer::Make(*file).value();
  const auto backend = MakeBackend({.kind = "cpu"}).value();
  const auto model = Model::Load(backend.get(), *file, 512).value();
  const auto cache = KvCache::Make(backend.get(), model->MakeKvLayout(32),
                                   {.arena_bytes = 256 << 20, .step_tokens = 512})
                         .value();
  const UnitCalibration calibration =
      MeasureUnits(backend.get(), model.get(), cache.get(),
                   tokenizer->Encode(CalibrationText(), {}), 512, kClusterWindow)
          .value();
  const KvLayout& layout = cache->layout();
  EXPECT_GT(calibration.recall[layout.unit(18, 2)], 0.5f);
  EXPECT_GT(calibration.recall[layout.unit(20, 2)], 0.3f);
  EXPECT_LT(calibration.recall[layout.unit(0, 0)], 0.03f);
  EXPECT_LT(calibration.recall[layout.unit(29, 1)], 0.03f);
  // Keys of 19.1 are alike, those of 17.1 are not.
  EXPECT_LT(calibration.merge_curves.Left(layout.unit(19, 1), 0.90), 0.3);
  EXPECT_GT(calibration.merge_curves.Left(layout.unit(17, 1), 0.90), 0.6);
}

TEST(UnitCalibrationErrorTest, TokensThatDoNotFitAreAnErrorAndLeaveNothing) {
  const auto backend = MakeBackend({.kind = "cpu", .num_threads = 1}).value();
  const auto file = GgufFile::Open(CONDENSE_TEST_DATA "/tiny/llama-f32.gguf").value();
  const auto model = Model::Load(backend.get(), *file, kStepTokens).value();
  const auto cache = KvCache::Make(backend.get(), model->MakeKvLayout(32),
                                   {.arena_bytes = 64 << 10, .step_tokens = kStepTokens})
                         .value();
  const std::vector<TokenId> tokens(200, 5);
  const auto units =
      MeasureUnits(backend.get(), model.get(), cache.get(), tokens, kStepTokens, kClusterWindow);
  EXPECT_EQ(units.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cache->Stats().slab_bytes, 0);
  EXPECT_EQ(cache->Stats().sequences, 0);
}

}  // namespace
}  // namespace condense
