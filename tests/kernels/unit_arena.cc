#include "tests/kernels/unit_arena.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace condense {
namespace {

// Cosines and sines of plain RoPE, kept per size because every arena needs them.
const std::pair<std::vector<float>, std::vector<float>>& AngleTable(int head_dim) {
  static std::map<int, std::pair<std::vector<float>, std::vector<float>>> tables;
  auto& [cos, sin] = tables[head_dim];
  if (!cos.empty()) return tables[head_dim];
  std::vector<double> frequencies;
  for (int i = 0; i < head_dim / 2; ++i) {
    frequencies.push_back(std::pow(10000.0, -2.0 * i / head_dim));
  }
  for (int p = 0; p < kNumPositions; ++p) {
    for (const double frequency : frequencies) {
      cos.push_back(static_cast<float>(std::cos(p * frequency)));
      sin.push_back(static_cast<float>(std::sin(p * frequency)));
    }
  }
  return tables[head_dim];
}

}  // namespace

UnitArena::UnitArena(const KvBlockShape& shape, const std::vector<int>& counts,
                     const std::vector<KvBlockKind>& kinds, RopePairing pairing)
    : lists_(shape, 1, {{counts, 1, kinds}}, 31), pairing_(pairing), image_(lists_.image()) {
  int position = 100;
  for (int b = 0; b < list().num_blocks; ++b) {
    sources_.push_back({list().blocks[b], position});
    position += list().blocks[b].count;
  }
  cos_ = AngleTable(shape.head_dim).first;
  sin_ = AngleTable(shape.head_dim).second;
  mean_ = RandomFloats(shape.head_dim, 32);
}

UnitArena::Contents UnitArena::ReadAll(Backend* backend) const {
  const DeviceArray<std::byte> arena(backend, image_);
  const DeviceArray<float> mean(backend, mean_), cos(backend, cos_), sin(backend, sin_);
  const int64_t entries = list().num_entries;
  Contents contents;
  contents.keys.resize(entries * shape().head_dim);
  contents.values.resize(entries * shape().head_dim);
  contents.biases.resize(entries);
  contents.positions.resize(entries);
  contents.counts.resize(entries);
  KvReadArgs args;
  args.arena = arena.get();
  args.shape = shape();
  args.sources = sources_.data();
  args.num_sources = static_cast<int32_t>(sources_.size());
  args.key_mean = mean.get();
  args.positions = {cos.get(), sin.get(), kNumPositions, pairing_};
  args.keys = contents.keys.data();
  args.values = contents.values.data();
  args.positions_out = contents.positions.data();
  args.biases = contents.biases.data();
  args.counts = contents.counts.data();
  EXPECT_TRUE(backend->KvRead(args).ok());
  return contents;
}

UnitArena::Evaluation UnitArena::Evaluate(Backend* backend, const std::vector<std::byte>& image,
                                          const KvList& list, int num_queries, int group,
                                          bool with_out) const {
  const int rows = num_queries * group;
  const DeviceArray<std::byte> arena(backend, image);
  const std::vector<float> q = RandomFloats(int64_t{rows} * shape().head_dim, 33);
  const DeviceArray<float> mean(backend, mean_), cos(backend, cos_), sin(backend, sin_);
  Evaluation result;
  result.out.resize(with_out ? q.size() : 0);
  result.log_sum_exp.resize(rows);
  result.mass.resize(int64_t{rows} * list.num_entries);
  KvEvaluateArgs args;
  args.q = q.data();
  args.arena = arena.get();
  args.shape = shape();
  args.num_queries = num_queries;
  args.group = group;
  args.list = list;
  args.scale = 1.0f / std::sqrt(static_cast<float>(shape().head_dim));
  args.key_mean = mean.get();
  args.positions = {cos.get(), sin.get(), kNumPositions, pairing_};
  args.out = with_out ? result.out.data() : nullptr;
  args.log_sum_exp = result.log_sum_exp.data();
  args.mass = result.mass.data();
  EXPECT_TRUE(backend->KvEvaluate(args).ok());
  return result;
}

std::vector<std::byte> UnitArena::Build(Backend* backend, const std::vector<KvBuildMember>& members,
                                        const std::vector<KvBuildEntry>& entries,
                                        const std::vector<KvBlockRef>& blocks) const {
  const DeviceArray<std::byte> arena(backend, image_);
  const DeviceArray<float> mean(backend, mean_), cos(backend, cos_), sin(backend, sin_);
  KvBuildArgs args;
  args.arena = arena.get();
  args.shape = shape();
  args.sources = sources_.data();
  args.num_sources = static_cast<int32_t>(sources_.size());
  args.members = members.data();
  args.entries = entries.data();
  args.num_entries = static_cast<int32_t>(entries.size());
  args.blocks = blocks.data();
  args.num_blocks = static_cast<int32_t>(blocks.size());
  args.key_mean = mean.get();
  args.positions = {cos.get(), sin.get(), kNumPositions, pairing_};
  EXPECT_TRUE(backend->KvBuild(args).ok());
  return arena.Read();
}

void UnitArena::PoisonValues() {
  for (int b = 0; b < list().num_blocks; ++b) {
    const KvBlockRef& block = list().blocks[b];
    const KvBlockPieces pieces = KvPieces(block.format, block.flags, shape());
    const bool plain = KvValueBits(block.format) == 16;
    const int64_t at =
        int64_t{block.offset_64} * 64 + (plain ? pieces.values : pieces.value_scales);
    const int64_t halves = int64_t{shape().block_tokens} * (plain ? shape().head_dim : 1);
    std::fill_n(image_.begin() + at, 2 * halves, std::byte{0x7e});
  }
}

void UnitArena::SetEntry(const KvBlockRef& block, int slot, const std::vector<float>& key,
                         const std::vector<float>& value) {
  std::byte* data = image_.data() + int64_t{block.offset_64} * 64;
  Half* keys = reinterpret_cast<Half*>(data);
  Half* values =
      reinterpret_cast<Half*>(data + KvPieces(block.format, block.flags, shape()).values);
  for (int d = 0; d < shape().head_dim; ++d) {
    keys[d * shape().block_tokens + slot] = ToHalf(key[d]);
    values[slot * shape().head_dim + d] = ToHalf(value[d]);
  }
}

}  // namespace condense
