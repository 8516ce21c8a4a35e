#include "kernels/cpu/kv_decode.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/kv_codes.h"

namespace condense::cpu {
namespace {

const std::byte* DataOf(const KvUnitView& unit, const KvBlockRef& block) {
  return unit.arena + int64_t{block.offset_64} * 64;
}

// The levels of one row of `cols` codes.
void DecodeRow(const VectorKernels& kernels, int bits, const std::byte* lower,
               const std::byte* upper, int cols, float* out) {
  const int whole = cols / kKvCodeGroup * kKvCodeGroup;
  kernels.levels(bits, lower, upper, whole, out);
  const KvCodePlanes planes = {const_cast<std::byte*>(lower), const_cast<std::byte*>(upper)};
  for (int i = whole; i < cols; ++i) {
    out[i] = KvLevel(bits, KvReadCode(planes, bits, cols, 0, i));
  }
}

void ReadSideArrays(const KvReadArgs& args, const KvUnitView& unit, const KvBuildSource& source,
                    int64_t first) {
  const KvBlockRef& block = source.block;
  const KvBlockPieces pieces = KvPieces(block.format, block.flags, args.shape);
  const std::byte* data = DataOf(unit, block);
  if (args.positions_out != nullptr) {
    KvSourcePositions(unit, source, args.positions_out + first);
  }
  for (int slot = 0; slot < block.count; ++slot) {
    if (args.biases != nullptr) {
      args.biases[first + slot] =
          (block.flags & kKvBias) != 0
              ? ToFloat(reinterpret_cast<const Half*>(data + pieces.bias)[slot])
              : 0.0f;
    }
    if (args.counts != nullptr) {
      args.counts[first + slot] =
          (block.flags & kKvCount) != 0 ? std::to_integer<int32_t>(data[pieces.counts + slot]) : 1;
    }
  }
}

}  // namespace

void KvSourcePositions(const KvUnitView& unit, const KvBuildSource& source, int32_t* positions) {
  const KvBlockRef& block = source.block;
  uint32_t base = static_cast<uint32_t>(source.first_position);
  const KvBlockPieces pieces = KvPieces(block.format, block.flags, unit.shape);
  const std::byte* data = DataOf(unit, block);
  if ((block.flags & (kKvPosition | kKvRun)) != 0) {
    std::memcpy(&base, data + pieces.base, sizeof(base));
  }
  const uint16_t* distances = reinterpret_cast<const uint16_t*>(data + pieces.distances);
  for (int slot = 0; slot < block.count; ++slot) {
    positions[slot] =
        static_cast<int32_t>(base + ((block.flags & kKvPosition) != 0 ? distances[slot] : slot));
  }
}

void RotateKey(const VectorKernels& kernels, const PositionTable& positions, int64_t distance,
               int head_dim, float* x) {
  CHECK_LT(std::abs(distance), int64_t{positions.num_positions});
  const int pairs = head_dim / 2;
  const float* cos = positions.cos + std::abs(distance) * pairs;
  const float* sin = positions.sin + std::abs(distance) * pairs;
  float negated[kMaxHeadDim / 2];
  if (distance < 0) {
    for (int i = 0; i < pairs; ++i) negated[i] = -sin[i];
    sin = negated;
  }
  if (positions.pairing == RopePairing::kAdjacent) {
    kernels.rope_adjacent(x, cos, sin, head_dim);
  } else {
    kernels.rope_half_split(x, cos, sin, head_dim);
  }
}

void AddRotatedMean(const VectorKernels& kernels, const KvUnitView& unit, int64_t position,
                    float sign, float* key) {
  const int head_dim = unit.shape.head_dim;
  float mean[kMaxHeadDim];
  std::copy_n(unit.key_mean, head_dim, mean);
  RotateKey(kernels, unit.positions, position, head_dim, mean);
  kernels.combine(key, 1.0f, mean, sign, head_dim);
}

void KvDecoder::KeyLevels(const KvUnitView& unit, const KvBlockRef& block, float* levels) {
  const int head_dim = unit.shape.head_dim;
  const int block_tokens = unit.shape.block_tokens;
  const int bits = KvKeyBits(block.format);
  const KvBlockPieces pieces = KvPieces(block.format, block.flags, unit.shape);
  const std::byte* data = DataOf(unit, block);
  float* columns = columns_.Reserve(int64_t{head_dim} * block_tokens);
  // Rows of a plane follow each other without gaps.
  kernels_->levels(bits, data + pieces.keys, data + pieces.key_upper, head_dim * block_tokens,
                   columns);
  kernels_->transpose(columns, block_tokens, head_dim, block.count, levels, head_dim);
}

void KvDecoder::Keys(const KvUnitView& unit, const KvBuildSource& source, float* keys) {
  const KvBlockRef& block = source.block;
  const int head_dim = unit.shape.head_dim;
  const KvBlockPieces pieces = KvPieces(block.format, block.flags, unit.shape);
  const std::byte* data = DataOf(unit, block);
  if (KvKeyBits(block.format) == 16) {
    return kernels_->transpose_half(reinterpret_cast<const Half*>(data), unit.shape.block_tokens,
                                    head_dim, block.count, keys, head_dim);
  }
  KeyLevels(unit, block, keys);
  const Half* scales = reinterpret_cast<const Half*>(data + pieces.key_scales);
  int32_t positions[kMaxBlockTokens];
  KvSourcePositions(unit, source, positions);
  for (int slot = 0; slot < block.count; ++slot) {
    float* key = keys + int64_t{slot} * head_dim;
    kernels_->scale(key, key, ToFloat(scales[slot]), head_dim);
    kernels_->hadamard(key, head_dim);
    if ((block.flags & kKvCentred) != 0) {
      AddRotatedMean(*kernels_, unit, positions[slot], 1.0f, key);
    }
  }
}

void KvDecoder::ValueLevels(const KvUnitView& unit, const KvBlockRef& block, float* levels) const {
  const int head_dim = unit.shape.head_dim;
  const int bits = KvValueBits(block.format);
  const KvBlockPieces pieces = KvPieces(block.format, block.flags, unit.shape);
  const std::byte* data = DataOf(unit, block);
  for (int slot = 0; slot < block.count; ++slot) {
    DecodeRow(*kernels_, bits,
              data + pieces.values + slot * KvPlaneRowBytes(head_dim, KvLowerBits(bits)),
              data + pieces.value_upper + slot * KvPlaneRowBytes(head_dim, KvUpperBits(bits)),
              head_dim, levels + int64_t{slot} * head_dim);
  }
}

void KvDecoder::Values(const KvUnitView& unit, const KvBlockRef& block, float* values) const {
  const int head_dim = unit.shape.head_dim;
  const KvBlockPieces pieces = KvPieces(block.format, block.flags, unit.shape);
  const std::byte* data = DataOf(unit, block);
  if (KvValueBits(block.format) == 16) {
    kernels_->to_float(values, reinterpret_cast<const Half*>(data + pieces.values),
                       block.count * head_dim);
    return;
  }
  ValueLevels(unit, block, values);
  const Half* scales = reinterpret_cast<const Half*>(data + pieces.value_scales);
  for (int slot = 0; slot < block.count; ++slot) {
    float* value = values + int64_t{slot} * head_dim;
    kernels_->scale(value, value, ToFloat(scales[slot]), head_dim);
    if (KvValuesRotated(block.format)) kernels_->hadamard(value, head_dim);
  }
}

void KvDecoder::Read(const KvReadArgs& args) {
  CHECK_LE(args.shape.head_dim, kMaxHeadDim);
  const KvUnitView unit = {args.arena, args.shape, args.key_mean, args.positions};
  const int64_t head_dim = args.shape.head_dim;
  int64_t first = 0;
  for (int s = 0; s < args.num_sources; ++s) {
    const KvBuildSource& source = args.sources[s];
    CHECK_LE(source.block.count, args.shape.block_tokens);
    if (args.keys != nullptr) {
      CHECK((source.block.flags & kKvCentred) == 0 || args.key_mean != nullptr);
      Keys(unit, source, args.keys + first * head_dim);
    }
    if (args.values != nullptr) Values(unit, source.block, args.values + first * head_dim);
    ReadSideArrays(args, unit, source, first);
    first += source.block.count;
  }
}

}  // namespace condense::cpu
