#include "kernels/cpu/kv_build.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/hadamard.h"
#include "kernels/kv_codes.h"

namespace condense::cpu {
namespace {

constexpr int kMaxHeadDim = 256;
constexpr int kMaxCount = 255;

std::byte* DataOf(const KvBuildArgs& args, const KvBlockRef& block) {
  return args.arena + int64_t{block.offset_64} * 64;
}

int64_t RoundedPosition(const KvBuildEntry& entry) { return std::lround(entry.position); }

// key = R(distance) key; negative distances turn back.
void Rotate(const PositionTable& positions, int64_t distance, int head_dim, float* key) {
  CHECK_LT(std::abs(distance), int64_t{positions.num_positions});
  const int pairs = head_dim / 2;
  const int step = positions.pairing == RopePairing::kAdjacent ? 2 : 1;
  const int apart = positions.pairing == RopePairing::kAdjacent ? 1 : pairs;
  const float* cos = positions.cos + std::abs(distance) * pairs;
  const float* sin = positions.sin + std::abs(distance) * pairs;
  const float direction = distance < 0 ? -1.0f : 1.0f;
  for (int i = 0; i < pairs; ++i) {
    float& a = key[i * step];
    float& b = key[i * step + apart];
    const float turned = a * cos[i] - b * (sin[i] * direction);
    b = b * cos[i] + a * (sin[i] * direction);
    a = turned;
  }
}

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
  for (int s = 0; s < args.num_sources; ++s) {
    for (int slot = 0; slot < args.sources[s].block.count; ++slot) {
      sources_.push_back({&args.sources[s], slot});
    }
  }
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
  if (single != nullptr && KvKeyBits(single->block->block.format) == bits &&
      ((single->block->block.flags ^ target.ref.flags) & kKvCentred) == 0 &&
      PositionOf(args, *single) == position) {
    const KvBlockRef& from = single->block->block;
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
    float part[kMaxHeadDim];
    ReadKey(args, source, part);
    const int64_t distance = position - PositionOf(args, source);
    if (distance != 0) Rotate(args.positions, distance, head_dim, part);
    for (int d = 0; d < head_dim; ++d) key[d] += member.key_weight * part[d];
  }
  if ((target.ref.flags & kKvCentred) != 0) AddMean(args, position, -1.0f, key);
  if (bits == 16) {
    for (int d = 0; d < head_dim; ++d) halves[d * block_tokens] = ToHalf(key[d]);
    return;
  }
  Hadamard(key, head_dim);
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
  if (single != nullptr && KvValueBits(single->block->block.format) == bits) {
    const KvBlockRef& from = single->block->block;
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
    float part[kMaxHeadDim];
    ReadValue(args, sources_[member.source], part);
    for (int d = 0; d < head_dim; ++d) value[d] += member.value_weight * part[d];
  }
  if (bits == 16) {
    kernels_->to_half(halves, value, head_dim);
    return;
  }
  if (KvValuesRotated(target.ref.format)) Hadamard(value, head_dim);
  *scale = KvQuantize(value, head_dim, bits, codes);
}

void KvBuilder::ReadKey(const KvBuildArgs& args, const Source& source, float* key) const {
  const int head_dim = args.shape.head_dim;
  const int64_t block_tokens = args.shape.block_tokens;
  const KvBlockRef& block = source.block->block;
  std::byte* data = DataOf(args, block);
  const int bits = KvKeyBits(block.format);
  if (bits == 16) {
    const Half* keys = reinterpret_cast<const Half*>(data) + source.slot;
    Half gathered[kMaxHeadDim];
    for (int d = 0; d < head_dim; ++d) gathered[d] = keys[d * block_tokens];
    kernels_->to_float(key, gathered, head_dim);
    return;
  }
  const KvBlockPieces pieces = KvPieces(block.format, block.flags, args.shape);
  const KvCodePlanes planes = {data + pieces.keys, data + pieces.key_upper};
  const float scale = ToFloat(reinterpret_cast<const Half*>(data + pieces.key_scales)[source.slot]);
  for (int d = 0; d < head_dim; ++d) {
    key[d] = scale * KvLevel(bits, KvReadCode(planes, bits, block_tokens, d, source.slot));
  }
  Hadamard(key, head_dim);
  if ((block.flags & kKvCentred) != 0) AddMean(args, PositionOf(args, source), 1.0f, key);
}

void KvBuilder::ReadValue(const KvBuildArgs& args, const Source& source, float* value) const {
  const int head_dim = args.shape.head_dim;
  const KvBlockRef& block = source.block->block;
  const KvBlockPieces pieces = KvPieces(block.format, block.flags, args.shape);
  std::byte* data = DataOf(args, block);
  const int bits = KvValueBits(block.format);
  if (bits == 16) {
    const Half* values = reinterpret_cast<const Half*>(data + pieces.values);
    kernels_->to_float(value, values + int64_t{source.slot} * head_dim, head_dim);
    return;
  }
  const KvCodePlanes planes = {data + pieces.values, data + pieces.value_upper};
  const float scale =
      ToFloat(reinterpret_cast<const Half*>(data + pieces.value_scales)[source.slot]);
  for (int d = 0; d < head_dim; ++d) {
    value[d] = scale * KvLevel(bits, KvReadCode(planes, bits, head_dim, source.slot, d));
  }
  if (KvValuesRotated(block.format)) Hadamard(value, head_dim);
}

int64_t KvBuilder::PositionOf(const KvBuildArgs& args, const Source& source) const {
  const KvBlockRef& block = source.block->block;
  if ((block.flags & (kKvPosition | kKvRun)) == 0) {
    return int64_t{source.block->first_position} + source.slot;
  }
  return KvPositionOf(DataOf(args, block), block, args.shape, source.slot);
}

void KvBuilder::AddMean(const KvBuildArgs& args, int64_t position, float sign, float* key) const {
  float mean[kMaxHeadDim];
  std::copy_n(args.key_mean, args.shape.head_dim, mean);
  Rotate(args.positions, position, args.shape.head_dim, mean);
  for (int d = 0; d < args.shape.head_dim; ++d) key[d] += sign * mean[d];
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
