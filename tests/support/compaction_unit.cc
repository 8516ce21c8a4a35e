#include "tests/support/compaction_unit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "cache/unit_ops.h"
#include "kernels/base/check.h"
#include "tests/support/unit_fixture.h"

namespace condense {
namespace {

constexpr int32_t kLayer = 1, kNumLayers = 2;
constexpr int32_t kHead = 1, kNumHeads = 2;

Buffer Allocate(Backend* backend, int64_t bytes) {
  absl::StatusOr<Buffer> buffer = backend->Allocate(bytes);
  CHECK(buffer.ok());
  return *std::move(buffer);
}

RopeFrequencies Frequencies(int32_t head_dim, bool has_rope) {
  RopeFrequencies frequencies{.pairing = RopePairing::kHalfSplit};
  for (int32_t i = 0; i < head_dim / 2; ++i) {
    frequencies.radians.push_back(has_rope ? std::pow(1e5, -2.0 * i / head_dim) : 0.0);
  }
  return frequencies;
}

}  // namespace

CompactionUnit::CompactionUnit(Backend* backend, const CompactionUnitOptions& options)
    : backend_(backend), num_positions_(options.num_entries) {
  model_.shape = {options.head_dim, options.block_tokens};
  model_.num_kv_heads = kNumHeads;
  model_.group = options.group;
  model_.attention_scale = 1.0f / std::sqrt(static_cast<float>(options.head_dim));
  const RopeFrequencies frequencies = Frequencies(options.head_dim, options.has_rope);
  model_.frequencies.assign(kNumLayers, frequencies);

  const std::vector<std::byte> sources = SourceImage(options);
  std::vector<std::byte> image((1 + options.room) * sources.size() + (1 << 16), kPoison);
  std::copy(sources.begin(), sources.end(), image.begin());
  next_free_ = static_cast<int64_t>(sources.size());
  arena_ = Allocate(backend, static_cast<int64_t>(image.size()));
  backend->CopyToDevice(arena_.data(), image.data(), arena_.size_bytes());
  model_.arena = arena_.data();

  std::vector<float> cos, sin;
  for (int32_t p = 0; p < num_positions_; ++p) {
    for (const double radians : frequencies.radians) {
      cos.push_back(static_cast<float>(std::cos(p * radians)));
      sin.push_back(static_cast<float>(std::sin(p * radians)));
    }
  }
  model_.positions.assign(kNumLayers,
                          {Store(cos), Store(sin), num_positions_, frequencies.pairing});
}

std::vector<std::byte> CompactionUnit::SourceImage(const CompactionUnitOptions& options) {
  const int32_t head_dim = options.head_dim, block_tokens = options.block_tokens;
  const UnitFixture unit = MakeUnit(options.num_entries, head_dim, options.seed);
  RopeTable rope(model_.frequencies.front());
  rope.Extend(options.num_entries);
  std::mt19937_64 random(options.seed + 1);
  std::normal_distribution<float> normal;
  std::vector<float> mean(int64_t{kNumHeads} * head_dim, 0.0f), key(head_dim), value(head_dim);
  const int64_t block_bytes = KvBlockBytes(KvFormat::kK16V16, model_.shape);
  const int32_t num_blocks = (options.num_entries + block_tokens - 1) / block_tokens;
  std::vector<std::byte> image(num_blocks * block_bytes, kPoison);
  for (int32_t e = 0; e < options.num_entries; ++e) {
    const int32_t slot = e % block_tokens;
    std::byte* block = image.data() + e / block_tokens * block_bytes;
    if (slot == 0) {
      front_.push_back({{static_cast<uint32_t>((block - image.data()) / 64)}, e});
    }
    ++front_.back().block.count;
    if (e % options.copies == 0) {
      std::copy_n(unit.keys.begin() + int64_t{e} * head_dim, head_dim, key.begin());
      for (float& x : value) x = normal(random);
    }
    for (int32_t d = 0; d < head_dim; ++d) {
      mean[kHead * head_dim + d] += key[d] / static_cast<float>(options.num_entries);
    }
    std::vector<float> turned = key;
    rope.Turn(e, turned.data());
    Half* keys = reinterpret_cast<Half*>(block);
    Half* values = reinterpret_cast<Half*>(block + KvValuesOffset(KvFormat::kK16V16, model_.shape));
    for (int32_t d = 0; d < head_dim; ++d) {
      keys[d * block_tokens + slot] = ToHalf(turned[d]);
      values[slot * head_dim + d] = ToHalf(value[d]);
    }
  }
  const float* stored = Store(mean);
  model_.key_mean.assign(kNumLayers, stored);
  return image;
}

const float* CompactionUnit::Store(const std::vector<float>& values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  tables_.push_back(Allocate(backend_, bytes));
  backend_->CopyToDevice(tables_.back().data(), reinterpret_cast<const std::byte*>(values.data()),
                         bytes);
  return tables_.back().as<float>();
}

std::vector<KvBlockRef> CompactionUnit::TakeBlocks(KvFormat format, KvBlockFlags flags,
                                                   int32_t num_blocks) {
  std::vector<KvBlockRef> blocks;
  for (int32_t i = 0; i < num_blocks; ++i) {
    blocks.push_back({static_cast<uint32_t>(next_free_ / 64), format, flags, 0});
    next_free_ += KvBlockBytes(format, model_.shape, flags);
  }
  CHECK_LE(next_free_, arena_.size_bytes());
  return blocks;
}

std::vector<float> CompactionUnit::RandomQueries(int32_t num, uint64_t seed) const {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> q(int64_t{num} * model_.group * model_.shape.head_dim);
  for (float& x : q) x = normal(random);
  return q;
}

QuerySamples CompactionUnit::Evidence(int32_t num, uint64_t seed) const {
  QuerySamples samples{.q = RandomQueries(2 * num, seed)};
  const int32_t n = CountEntries(front_);
  for (int32_t i = 1; i <= num; ++i) {
    samples.visible.push_back(static_cast<int32_t>(int64_t{n} * i / (num + 1)));
  }
  samples.visible.insert(samples.visible.end(), num, n);
  return samples;
}

QuerySamples CompactionUnit::HeldOut(int32_t num, uint64_t seed) const {
  return {.q = RandomQueries(num, seed),
          .visible = std::vector<int32_t>(num, CountEntries(front_))};
}

CompactionJob CompactionUnit::Job(const Policy* policy, KvFormat format, KvBlockFlags flags,
                                  double ratio) {
  const int32_t n = CountEntries(front_);
  const int32_t block_tokens = model_.shape.block_tokens;
  CompactionJob job;
  job.ticket = 42;
  job.layer = kLayer;
  job.kv_head = kHead;
  job.front = front_;
  job.num_blocks = static_cast<int32_t>(front_.size());
  job.destinations = TakeBlocks(format, flags, (n + block_tokens - 1) / block_tokens);
  job.policy = policy;
  job.params.formats = {
      MakeFormatCost({KvKeyBits(format), KvValueBits(format)}, model_.shape.head_dim)};
  const double bytes_16bit = 4.0 * model_.shape.head_dim * num_positions_;
  if (ratio > 0) job.params.target_bytes = bytes_16bit / ratio;
  job.protection.end_position = num_positions_;
  job.evidence = Evidence(16, 1);
  job.held_out = HeldOut(8, 2);
  job.limits = {std::numeric_limits<double>::max(), std::numeric_limits<double>::max()};
  return job;
}

void CompactionUnit::Swap(const CompactionJob& job, const CompactionResult& result) {
  CHECK(result.outcome == SwapOutcome::kAccepted);
  const auto range = front_.begin() + job.first_block;
  std::vector<KvBuildSource> back(front_.begin(), range);
  for (const KvBlockRef& block : result.blocks) back.push_back({block, 0});
  back.insert(back.end(), range + job.num_blocks, front_.end());
  front_ = std::move(back);
}

std::vector<std::byte> CompactionUnit::Image() const {
  std::vector<std::byte> image(arena_.size_bytes());
  backend_->CopyToHost(image.data(), arena_.data(), arena_.size_bytes());
  CHECK(backend_->Synchronize().ok());
  return image;
}

}  // namespace condense
