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

}  // namespace

void KvBuilder::Run(const KvBuildArgs& args) {
  CHECK_LE(args.shape.head_dim, kMaxHeadDim);
  const int head_dim = args.shape.head_dim;
  sources_.clear();
  blocks_.clear();
  for (int s = 0; s < args.num_sources; ++s) {
    int32_t positions[kMaxBlockTokens];
    KvSourcePositions(UnitOf(args), args.sources[s], positions);
    blocks_.push_back({static_cast<int32_t>(sources_.size())});
    for (int slot = 0; slot < args.sources[s].block.count; ++slot) {
      sources_.push_back({s, slot, positions[slot]});
    }
  }
  const int64_t floats = static_cast<int64_t>(sources_.size()) * head_dim;
  decoded_ = decoded_floats_.Reserve(kNumDecoded * floats);
  rows_ = row_floats_.Reserve(int64_t{head_dim} * args.shape.block_tokens);
  columns_ = column_floats_.Reserve(int64_t{head_dim} * args.shape.block_tokens);
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
  BuildKeys(args, target, args.entries + first_entry);
  BuildValues(args, target, args.entries + first_entry);
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

void KvBuilder::BuildKeys(const KvBuildArgs& args, const Target& target,
                          const KvBuildEntry* entries) {
  const int head_dim = args.shape.head_dim;
  const int block_tokens = args.shape.block_tokens;
  const int bits = KvKeyBits(target.ref.format);
  Half* scales = reinterpret_cast<Half*>(target.data + target.pieces.key_scales);
  for (int slot = 0; slot < target.ref.count; ++slot) {
    float* key = rows_ + slot * head_dim;
    const KvBuildEntry& entry = entries[slot];
    const Source* single = SingleSource(args, entry, &KvBuildMember::key_weight);
    if (single != nullptr && KeysAlike(args, *single, target.ref, RoundedPosition(entry))) {
      std::copy_n(Decoded(args, *single, kKeyLevels), head_dim, key);
      scales[slot] = ScaleOf(args, *single, true);
      continue;
    }
    SumKey(args, entry, single, key);
    if ((target.ref.flags & kKvCentred) != 0) {
      AddRotatedMean(*kernels_, UnitOf(args), RoundedPosition(entry), -1.0f, key);
    }
    if (bits == 16) continue;
    kernels_->hadamard(key, head_dim);
    scales[slot] = ToLevels(bits, head_dim, key);
  }
  std::fill(rows_ + target.ref.count * head_dim, rows_ + block_tokens * head_dim, 0.0f);
  kernels_->transpose(rows_, head_dim, block_tokens, head_dim, columns_, block_tokens);
  std::byte* keys = target.data + target.pieces.keys;
  const int n = head_dim * block_tokens;
  if (bits == 16) {
    kernels_->to_half(reinterpret_cast<Half*>(keys), columns_, n);
  } else {
    // Rows of a plane follow each other without gaps.
    kernels_->pack_levels(bits, columns_, n, keys, target.data + target.pieces.key_upper);
  }
}

void KvBuilder::SumKey(const KvBuildArgs& args, const KvBuildEntry& entry, const Source* single,
                       float* key) {
  const int head_dim = args.shape.head_dim;
  const int64_t position = RoundedPosition(entry);
  if (single != nullptr) {
    std::copy_n(Decoded(args, *single, kKeys), head_dim, key);
    if (position != single->position) {
      RotateKey(*kernels_, args.positions, position - single->position, head_dim, key);
    }
    return;
  }
  std::fill_n(key, head_dim, 0.0f);
  for (int m = 0; m < entry.num_members; ++m) {
    const KvBuildMember& member = args.members[entry.first_member + m];
    if (member.key_weight == 0.0f) continue;
    const Source& source = sources_[member.source];
    const float* part = Decoded(args, source, kKeys);
    float turned[kMaxHeadDim];
    if (position != source.position) {
      std::copy_n(part, head_dim, turned);
      RotateKey(*kernels_, args.positions, position - source.position, head_dim, turned);
      part = turned;
    }
    kernels_->combine(key, 1.0f, part, member.key_weight, head_dim);
  }
}

void KvBuilder::BuildValues(const KvBuildArgs& args, const Target& target,
                            const KvBuildEntry* entries) {
  const int head_dim = args.shape.head_dim;
  const int bits = KvValueBits(target.ref.format);
  Half* scales = reinterpret_cast<Half*>(target.data + target.pieces.value_scales);
  for (int slot = 0; slot < target.ref.count; ++slot) {
    float* value = rows_ + slot * head_dim;
    const Source* single = SingleSource(args, entries[slot], &KvBuildMember::value_weight);
    if (bits < 16 && single != nullptr && KvValueBits(BlockOf(args, *single).format) == bits) {
      std::copy_n(Decoded(args, *single, kValueLevels), head_dim, value);
      scales[slot] = ScaleOf(args, *single, false);
      continue;
    }
    SumValue(args, entries[slot], single, value);
    if (bits == 16) continue;
    if (KvValuesRotated(target.ref.format)) kernels_->hadamard(value, head_dim);
    scales[slot] = ToLevels(bits, head_dim, value);
  }
  if (bits == 16) {
    kernels_->to_half(reinterpret_cast<Half*>(target.data + target.pieces.values), rows_,
                      target.ref.count * head_dim);
  } else {
    PackValues(args, target);
  }
}

void KvBuilder::SumValue(const KvBuildArgs& args, const KvBuildEntry& entry, const Source* single,
                         float* value) {
  const int head_dim = args.shape.head_dim;
  if (single != nullptr) {
    std::copy_n(Decoded(args, *single, kValues), head_dim, value);
    return;
  }
  std::fill_n(value, head_dim, 0.0f);
  for (int m = 0; m < entry.num_members; ++m) {
    const KvBuildMember& member = args.members[entry.first_member + m];
    if (member.value_weight == 0.0f) continue;
    kernels_->combine(value, 1.0f, Decoded(args, sources_[member.source], kValues),
                      member.value_weight, head_dim);
  }
}

bool KvBuilder::KeysAlike(const KvBuildArgs& args, const Source& source, const KvBlockRef& to,
                          int64_t position) const {
  const KvBlockRef& from = BlockOf(args, source);
  return KvKeysRotated(to.format) && KvKeyBits(from.format) == KvKeyBits(to.format) &&
         ((from.flags ^ to.flags) & kKvCentred) == 0 && source.position == position;
}

Half KvBuilder::ToLevels(int bits, int head_dim, float* x) const {
  const Half scale = KvScale(kernels_->largest_magnitude(x, head_dim), bits);
  // Codes follow from the scale as it is stored, not as it was computed.
  const float step = ToFloat(scale);
  if (step > 0.0f) {
    kernels_->scale(x, x, 1.0f / step, head_dim);
  } else {
    std::fill_n(x, head_dim, 0.0f);  // all zero, or not finite
  }
  return scale;
}

Half KvBuilder::ScaleOf(const KvBuildArgs& args, const Source& source, bool key) {
  const KvBlockRef& from = BlockOf(args, source);
  const KvBlockPieces pieces = KvPieces(from.format, from.flags, args.shape);
  const std::byte* scales = DataOf(args, from) + (key ? pieces.key_scales : pieces.value_scales);
  return reinterpret_cast<const Half*>(scales)[source.slot];
}

const float* KvBuilder::Decoded(const KvBuildArgs& args, const Source& source, DecodedKind kind) {
  const int64_t head_dim = args.shape.head_dim;
  const KvBuildSource& from = args.sources[source.block];
  DecodedBlock& block = blocks_[source.block];
  float* at =
      decoded_ + (kind * static_cast<int64_t>(sources_.size()) + block.first_entry) * head_dim;
  if (!block.ready[kind]) {
    block.ready[kind] = true;
    const KvUnitView unit = UnitOf(args);
    switch (kind) {
      case kKeys:
        decoder_.Keys(unit, from, at);
        break;
      case kValues:
        decoder_.Values(unit, from.block, at);
        break;
      case kKeyLevels:
        decoder_.KeyLevels(unit, from.block, at);
        break;
      default:
        decoder_.ValueLevels(unit, from.block, at);
        break;
    }
  }
  return at + source.slot * head_dim;
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

void KvBuilder::PackValues(const KvBuildArgs& args, const Target& target) const {
  const int head_dim = args.shape.head_dim;
  const int bits = KvValueBits(target.ref.format);
  const int whole = head_dim / kKvCodeGroup * kKvCodeGroup;
  const int64_t lower_row = KvPlaneRowBytes(head_dim, KvLowerBits(bits));
  const int64_t upper_row = KvPlaneRowBytes(head_dim, KvUpperBits(bits));
  std::byte* lower = target.data + target.pieces.values;
  std::byte* upper = target.data + target.pieces.value_upper;
  for (int slot = 0; slot < target.ref.count; ++slot) {
    const float* levels = rows_ + slot * head_dim;
    kernels_->pack_levels(bits, levels, whole, lower, upper);
    for (int d = whole; d < head_dim; ++d) {
      KvWriteCode({lower, upper}, bits, head_dim, 0, d, KvCode(bits, levels[d]));
    }
    lower += lower_row;
    upper += upper_row;
  }
}

}  // namespace condense::cpu
