#include "kernels/cpu/kv_build.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/kv_codes.h"

namespace condense::cpu {
namespace {

constexpr int kMaxCount = 255;

std::byte* DataOf(const KvBuildArgs& args, const KvBlockRef& block) {
  return args.arena + int64_t{block.offset_64} * 64;
}

KvUnitView UnitOf(const KvBuildArgs& args) {
  return {args.arena, args.shape, args.key_mean, args.positions};
}

int64_t RoundedPosition(const KvBuildEntry& entry) { return std::lround(entry.position); }

// A plane's bytes of one row: `codes` [cols], of which the bits from `code_shift` on are stored.
void PackPlane(const uint8_t* codes, int64_t cols, int plane_bits, int code_shift, std::byte* row) {
  const int mask = (1 << plane_bits) - 1;
  for (int64_t first = 0; first < cols; first += kKvCodeGroup) {
    const int64_t bytes = std::min<int64_t>(kKvCodeGroup, cols - first) * plane_bits / 8;
    for (int64_t j = 0; j < bytes; ++j) {
      int byte = 0;
      for (int k = 0; k < 8 / plane_bits; ++k) {
        byte |= ((codes[first + j + k * bytes] >> code_shift) & mask) << (k * plane_bits);
      }
      row[first * plane_bits / 8 + j] = static_cast<std::byte>(byte);
    }
  }
}

void PackRows(const std::vector<uint8_t>& codes, int bits, int64_t rows, int64_t cols,
              std::byte* lower, std::byte* upper) {
  const int lower_bits = KvLowerBits(bits);
  const int upper_bits = KvUpperBits(bits);
  for (int64_t row = 0; row < rows; ++row) {
    const uint8_t* from = codes.data() + row * cols;
    PackPlane(from, cols, lower_bits, 0, lower + row * KvPlaneRowBytes(cols, lower_bits));
    if (upper_bits > 0) {
      PackPlane(from, cols, upper_bits, lower_bits,
                upper + row * KvPlaneRowBytes(cols, upper_bits));
    }
  }
}

}  // namespace

void KvBuilder::Run(const KvBuildArgs& args) {
  CHECK_LE(args.shape.head_dim, kMaxHeadDim);
  sources_.clear();
  blocks_.clear();
  for (int s = 0; s < args.num_sources; ++s) {
    blocks_.push_back({static_cast<int32_t>(sources_.size())});
    for (int slot = 0; slot < args.sources[s].block.count; ++slot) sources_.push_back({s, slot});
  }
  const int64_t floats = static_cast<int64_t>(sources_.size()) * args.shape.head_dim;
  keys_ = key_floats_.Reserve(floats);
  values_ = value_floats_.Reserve(floats);
  int first_entry = 0;
  for (int b = 0; b < args.num_blocks; ++b) {
    BuildBlock(args, args.blocks[b], first_entry);
    first_entry += args.blocks[b].count;
  }
  CHECK_EQ(first_entry, args.num_entries);
}

void KvBuilder::BuildBlock(const KvBuildArgs& args, const KvBlockRef& block, int first_entry) {
  CHECK_LE(block.count, args.shape.block_tokens);
  CHECK((block.flags & kKvCentred) == 0 ||
        (KvKeysRotated(block.format) && args.key_mean != nullptr));
  const Target target = {block, KvPieces(block.format, block.flags, args.shape),
                         DataOf(args, block)};
  std::memset(target.data, 0, target.pieces.bytes);
  const size_t codes = size_t{1} * args.shape.head_dim * args.shape.block_tokens;
  key_codes_.assign(codes, 0);
  value_codes_.assign(codes, 0);
  for (int slot = 0; slot < block.count; ++slot) {
    const KvBuildEntry& entry = args.entries[first_entry + slot];
    BuildKey(args, target, entry, slot);
    BuildValue(args, target, entry, slot);
  }
  if (KvKeyBits(block.format) < 16) PackKeys(args, target);
  if (KvValueBits(block.format) < 16) PackValues(args, target);
  WriteSideArrays(args, target, first_entry);
}

const KvBuilder::Source* KvBuilder::SingleSource(const KvBuildArgs& args, const KvBuildEntry& entry,
                                                 float KvBuildMember::*weight) const {
  const Source* single = nullptr;
  for (int m = 0; m < entry.num_members; ++m) {
    const KvBuildMember& member = args.members[entry.first_member + m];
    CHECK_LT(static_cast<size_t>(member.source), sources_.size());
    if (member.*weight == 0.0f) continue;
    if (single != nullptr || member.*weight != 1.0f) return nullptr;
    single = &sources_[member.source];
  }
  return single;
}

void KvBuilder::BuildKey(const KvBuildArgs& args, const Target& target, const KvBuildEntry& entry,
                         int slot) {
  const int head_dim = args.shape.head_dim;
  const int block_tokens = args.shape.block_tokens;
  const int bits = KvKeyBits(target.ref.format);
  const int64_t position = RoundedPosition(entry);
  Half* scale = reinterpret_cast<Half*>(target.data + target.pieces.key_scales) + slot;
  Half* halves = reinterpret_cast<Half*>(target.data + target.pieces.keys) + slot;
  const Source* single = SingleSource(args, entry, &KvBuildMember::key_weight);
  if (single != nullptr && KvKeyBits(BlockOf(args, *single).format) == bits &&
      ((BlockOf(args, *single).flags ^ target.ref.flags) & kKvCentred) == 0 &&
      PositionOf(args, *single) == position) {
    const KvBlockRef& from = BlockOf(args, *single);
    std::byte* data = DataOf(args, from);
    const KvBlockPieces pieces = KvPieces(from.format, from.flags, args.shape);
    const KvCodePlanes planes = {data + pieces.keys, data + pieces.key_upper};
    const Half* source_halves = reinterpret_cast<const Half*>(planes.lower) + single->slot;
    if (bits < 16) *scale = reinterpret_cast<const Half*>(data + pieces.key_scales)[single->slot];
    for (int d = 0; d < head_dim; ++d) {
      if (bits == 16) {
        halves[d * block_tokens] = source_halves[d * block_tokens];
      } else {
        key_codes_[d * block_tokens + slot] =
            KvReadCode(planes, bits, block_tokens, d, single->slot);
      }
    }
    return;
  }
  float key[kMaxHeadDim] = {};
  for (int m = 0; m < entry.num_members; ++m) {
    const KvBuildMember& member = args.members[entry.first_member + m];
    if (member.key_weight == 0.0f) continue;
    const Source& source = sources_[member.source];
    const float* part = KeyOf(args, source);
    const int64_t distance = position - PositionOf(args, source);
    float turned[kMaxHeadDim];
    if (distance != 0) {
      std::copy_n(part, head_dim, turned);
      RotateKey(*kernels_, args.positions, distance, head_dim, turned);
      part = turned;
    }
    kernels_->combine(key, 1.0f, part, member.key_weight, head_dim);
  }
  if ((target.ref.flags & kKvCentred) != 0) {
    AddRotatedMean(*kernels_, UnitOf(args), position, -1.0f, key);
  }
  if (bits == 16) {
    for (int d = 0; d < head_dim; ++d) halves[d * block_tokens] = ToHalf(key[d]);
    return;
  }
  kernels_->hadamard(key, head_dim);
  uint8_t codes[kMaxHeadDim];
  *scale = KvQuantize(key, head_dim, bits, codes);
  for (int d = 0; d < head_dim; ++d) key_codes_[d * block_tokens + slot] = codes[d];
}

void KvBuilder::BuildValue(const KvBuildArgs& args, const Target& target, const KvBuildEntry& entry,
                           int slot) {
  const int head_dim = args.shape.head_dim;
  const int bits = KvValueBits(target.ref.format);
  Half* scale = reinterpret_cast<Half*>(target.data + target.pieces.value_scales) + slot;
  Half* halves = reinterpret_cast<Half*>(target.data + target.pieces.values) + slot * head_dim;
  uint8_t* codes = value_codes_.data() + size_t{1} * slot * head_dim;
  const Source* single = SingleSource(args, entry, &KvBuildMember::value_weight);
  if (single != nullptr && KvValueBits(BlockOf(args, *single).format) == bits) {
    const KvBlockRef& from = BlockOf(args, *single);
    std::byte* data = DataOf(args, from);
    const KvBlockPieces pieces = KvPieces(from.format, from.flags, args.shape);
    const KvCodePlanes planes = {data + pieces.values, data + pieces.value_upper};
    if (bits == 16) {
      std::copy_n(reinterpret_cast<const Half*>(planes.lower) + single->slot * head_dim, head_dim,
                  halves);
      return;
    }
    *scale = reinterpret_cast<const Half*>(data + pieces.value_scales)[single->slot];
    for (int d = 0; d < head_dim; ++d)
      codes[d] = KvReadCode(planes, bits, head_dim, single->slot, d);
    return;
  }
  float value[kMaxHeadDim] = {};
  for (int m = 0; m < entry.num_members; ++m) {
    const KvBuildMember& member = args.members[entry.first_member + m];
    if (member.value_weight == 0.0f) continue;
    kernels_->combine(value, 1.0f, ValueOf(args, sources_[member.source]), member.value_weight,
                      head_dim);
  }
  if (bits == 16) {
    kernels_->to_half(halves, value, head_dim);
    return;
  }
  if (KvValuesRotated(target.ref.format)) kernels_->hadamard(value, head_dim);
  *scale = KvQuantize(value, head_dim, bits, codes);
}

const float* KvBuilder::KeyOf(const KvBuildArgs& args, const Source& source) {
  DecodedBlock& block = blocks_[source.block];
  if (block.keys == nullptr) {
    block.keys = keys_ + int64_t{block.first_entry} * args.shape.head_dim;
    decoder_.Keys(UnitOf(args), args.sources[source.block], block.keys);
  }
  return block.keys + int64_t{source.slot} * args.shape.head_dim;
}

const float* KvBuilder::ValueOf(const KvBuildArgs& args, const Source& source) {
  DecodedBlock& block = blocks_[source.block];
  if (block.values == nullptr) {
    block.values = values_ + int64_t{block.first_entry} * args.shape.head_dim;
    decoder_.Values(UnitOf(args), args.sources[source.block].block, block.values);
  }
  return block.values + int64_t{source.slot} * args.shape.head_dim;
}

void KvBuilder::WriteSideArrays(const KvBuildArgs& args, const Target& target, int first_entry) {
  const KvBlockFlags flags = target.ref.flags;
  const KvBuildEntry* entries = args.entries + first_entry;
  int64_t base = target.ref.count > 0 ? RoundedPosition(entries[0]) : 0;
  for (int e = 0; e < target.ref.count; ++e) base = std::min(base, RoundedPosition(entries[e]));
  CHECK_GE(base, 0);
  if ((flags & (kKvPosition | kKvRun)) != 0) {
    const uint32_t stored = static_cast<uint32_t>(base);
    std::memcpy(target.data + target.pieces.base, &stored, sizeof(stored));
  }
  for (int e = 0; e < target.ref.count; ++e) {
    const int64_t distance = RoundedPosition(entries[e]) - base;
    if ((flags & kKvRun) != 0) CHECK_EQ(distance, e);
    if ((flags & kKvPosition) != 0) {
      CHECK_LE(distance, 65535);
      const uint16_t stored = static_cast<uint16_t>(distance);
      std::memcpy(target.data + target.pieces.distances + 2 * e, &stored, sizeof(stored));
    }
    if ((flags & kKvBias) != 0) {
      const Half stored = ToHalf(entries[e].bias);
      std::memcpy(target.data + target.pieces.bias + 2 * e, &stored, sizeof(stored));
    } else {
      CHECK_EQ(entries[e].bias, 0.0f);
    }
    if ((flags & kKvCount) != 0) {
      target.data[target.pieces.counts + e] =
          static_cast<std::byte>(std::min(entries[e].count, kMaxCount));
    }
  }
}

void KvBuilder::PackKeys(const KvBuildArgs& args, const Target& target) const {
  PackRows(key_codes_, KvKeyBits(target.ref.format), args.shape.head_dim, args.shape.block_tokens,
           target.data + target.pieces.keys, target.data + target.pieces.key_upper);
}

void KvBuilder::PackValues(const KvBuildArgs& args, const Target& target) const {
  PackRows(value_codes_, KvValueBits(target.ref.format), args.shape.block_tokens,
           args.shape.head_dim, target.data + target.pieces.values,
           target.data + target.pieces.value_upper);
}

}  // namespace condense::cpu
