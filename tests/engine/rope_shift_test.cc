// A key that is moved to another position is the key that the model computes there, for every model
// that can be loaded: with the angles that the engine hands to compaction, through kv-build.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/batch.h"
#include "engine/gguf.h"
#include "engine/model.h"

namespace condense {
namespace {

constexpr int32_t kNumPositions = 4096;
// Of keys stored twice in f16.
constexpr double kTolerance = 1e-3;

std::vector<std::string> TinyModels() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(CONDENSE_TEST_DATA "/tiny")) {
    if (entry.path().extension() == ".gguf") names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

double NormalizedError(const std::vector<float>& actual, const std::vector<float>& expected) {
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{actual[i]} - expected[i], 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(error / norm);
}

// A model and sequences of one token. Such a token attends to itself alone, so that nothing in the
// model but RoPE depends on its position: the keys of all layers are those of another position,
// turned.
class LoneToken {
 public:
  explicit LoneToken(const std::string& name) {
    const auto file = GgufFile::Open(CONDENSE_TEST_DATA "/tiny/" + name + ".gguf").value();
    model_ = Model::Load(backend_.get(), *file, 1).value();
    EXPECT_TRUE(model_->MakePositionTables(kNumPositions).ok());
    cache_ = KvCache::Make(backend_.get(), model_->MakeKvLayout(32),
                           {.arena_bytes = 16 << 20, .step_tokens = 1})
                 .value();
  }

  const ModelConfig& config() const { return model_->config(); }
  RopeFrequencies Frequencies(int32_t layer) const { return model_->Frequencies(layer); }

  std::unique_ptr<KvSequence> RunAt(int32_t position) {
    std::unique_ptr<KvSequence> kv = cache_->Open();
    EXPECT_TRUE(cache_->TryReserve(kv.get(), 1));
    Batch batch;
    batch.tokens = {7};
    batch.positions = {position};
    batch.sequences = {{.first_row = 0, .num_tokens = 1}};
    batch.kv = {kv.get()};
    model_->Forward(&batch, cache_.get());
    EXPECT_TRUE(backend_->Synchronize().ok());
    cache_->Commit(kv.get(), 1);
    return kv;
  }
  std::vector<float> Key(const KvSequence& kv, int32_t unit) {
    std::vector<float> key(config().head_dim);
    const KvBuildSource source{BlockOf(kv, unit), 0};
    EXPECT_TRUE(backend_
                    ->KvRead({.arena = cache_->arena(),
                              .shape = cache_->layout().block,
                              .sources = &source,
                              .num_sources = 1,
                              .keys = key.data()})
                    .ok());
    return key;
  }
  // What kv-build makes of the entries of `parts`, which are at `positions`, at position `to`.
  std::vector<float> Built(const std::vector<const KvSequence*>& parts,
                           const std::vector<int32_t>& positions, const std::vector<float>& weights,
                           int32_t unit, int32_t to) {
    const std::unique_ptr<KvSequence> room = cache_->Open();
    EXPECT_TRUE(cache_->TryReserve(room.get(), 1));
    std::vector<KvBuildSource> sources;
    std::vector<KvBuildMember> members;
    for (size_t i = 0; i < parts.size(); ++i) {
      sources.push_back({BlockOf(*parts[i], unit), positions[i]});
      members.push_back({static_cast<int32_t>(i), weights[i], weights[i]});
    }
    const KvBuildEntry entry{.num_members = static_cast<int32_t>(parts.size()),
                             .position = static_cast<float>(to)};
    const KvBlockRef block = BlockOf(*room, unit);
    EXPECT_TRUE(backend_
                    ->KvBuild({.arena = cache_->arena(),
                               .shape = cache_->layout().block,
                               .sources = sources.data(),
                               .num_sources = static_cast<int32_t>(sources.size()),
                               .members = members.data(),
                               .entries = &entry,
                               .num_entries = 1,
                               .blocks = &block,
                               .num_blocks = 1,
                               .positions = model_->Positions(unit / config().num_kv_heads)})
                    .ok());
    const std::vector<float> key = Key(*room, unit);
    cache_->Release(room.get());
    return key;
  }
  void Release(KvSequence* kv) { cache_->Release(kv); }
  int32_t num_units() const { return cache_->layout().num_units(); }

 private:
  static KvBlockRef BlockOf(const KvSequence& kv, int32_t unit) {
    KvBlockRef block = kv.tables[unit].blocks()[0];
    block.count = 1;
    return block;
  }

  std::unique_ptr<Backend> backend_ = MakeBackend({.kind = "cpu", .num_threads = 1}).value();
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> cache_;
};

class RopeShiftTest : public ::testing::TestWithParam<std::string> {};

TEST_P(RopeShiftTest, AMovedKeyIsTheKeyThatTheModelComputesThere) {
  LoneToken token(GetParam());
  const int32_t shifts[][2] = {{0, 1}, {5, 6}, {130, 97}, {0, 4000}, {4000, 3}, {1000, 1900}};
  for (const auto& [from, to] : shifts) {
    SCOPED_TRACE(::testing::Message() << "from " << from << " to " << to);
    const auto before = token.RunAt(from);
    const auto fresh = token.RunAt(to);
    for (int32_t unit = 0; unit < token.num_units(); ++unit) {
      const std::vector<float> expected = token.Key(*fresh, unit);
      EXPECT_GT(NormalizedError(token.Key(*before, unit), expected), 10 * kTolerance);
      EXPECT_LE(NormalizedError(token.Built({before.get()}, {from}, {1.0f}, unit, to), expected),
                kTolerance)
          << "unit " << unit;
      // The turns that policies compare keys with.
      RopeTable rope(token.Frequencies(unit / token.config().num_kv_heads));
      rope.Extend(std::abs(to - from));
      std::vector<float> turned = token.Key(*before, unit);
      rope.Turn(to - from, turned.data());
      EXPECT_LE(NormalizedError(turned, expected), kTolerance) << "unit " << unit;
    }
    token.Release(before.get());
    token.Release(fresh.get());
  }
}

TEST_P(RopeShiftTest, AnAverageOfOneKeyIsThatKeyAtTheNewPosition) {
  LoneToken token(GetParam());
  const std::vector<int32_t> from = {3, 120, 3100};
  std::vector<std::unique_ptr<KvSequence>> kept;
  std::vector<const KvSequence*> parts;
  for (const int32_t position : from) {
    kept.push_back(token.RunAt(position));
    parts.push_back(kept.back().get());
  }
  const auto fresh = token.RunAt(811);
  for (int32_t unit = 0; unit < token.num_units(); ++unit) {
    const std::vector<float> built = token.Built(parts, from, {0.5f, 0.3f, 0.2f}, unit, 811);
    EXPECT_LE(NormalizedError(built, token.Key(*fresh, unit)), kTolerance) << "unit " << unit;
  }
  for (const auto& kv : kept) token.Release(kv.get());
  token.Release(fresh.get());
}

INSTANTIATE_TEST_SUITE_P(Models, RopeShiftTest, ::testing::ValuesIn(TinyModels()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// All that the loader can make of a file is among the models above.
TEST(RopeShiftModelsTest, CoverEveryArchitecturePairingAndScaling) {
  std::set<std::string> architectures;
  std::set<RopePairing> pairings;
  bool linear = false, divided = false, local = false;
  for (const std::string& name : TinyModels()) {
    const auto file = GgufFile::Open(CONDENSE_TEST_DATA "/tiny/" + name + ".gguf").value();
    const ModelConfig config = ReadModelConfig(*file).value();
    architectures.insert(config.architecture);
    pairings.insert(config.rope_pairing);
    linear = linear || config.rope_linear_factor != 1.0;
    divided = divided || config.has_rope_freqs;
    for (int32_t layer = 0; layer < config.num_layers; ++layer) {
      local = local || config.theta(layer) != config.rope_theta;
    }
  }
  EXPECT_THAT(KnownArchitectures(), ::testing::UnorderedElementsAreArray(architectures));
  EXPECT_EQ(pairings.size(), 2u);
  EXPECT_TRUE(linear);
  EXPECT_TRUE(divided);
  EXPECT_TRUE(local);
}

}  // namespace
}  // namespace condense
