#include "kernels/cpu/kv_decode.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/hadamard.h"
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

// Every column's own transform: rows of `width` floats meet whole.
void HadamardColumns(float* x, int n, int width) {
  const int run = HadamardWidth(n);
  for (int half = 1; half < run; half *= 2) {
    for (int first = 0; first < n; first += 2 * half) {
      float* a = x + int64_t{first} * width;
      float* b = a + int64_t{half} * width;
      for (int i = 0; i < half * width; ++i) {
        const float sum = a[i] + b[i];
        b[i] = a[i] - b[i];
        a[i] = sum;
      }
    }
  }
  const float factor = 1.0f / std::sqrt(static_cast<float>(run));
  for (int i = 0; i < n * width; ++i) x[i] *= factor;
}

void ReadSideArrays(const KvReadArgs& args, const KvUnitView& unit, const KvBuildSource& source,
                    int64_t first) {
  const KvBlockRef& block = source.block;
  const KvBlockPieces pieces = KvPieces(block.format, block.flags, args.shape);
  const std::byte* data = DataOf(unit, block);
  for (int slot = 0; slot < block.count; ++slot) {
    if (args.positions_out != nullptr) {
      args.positions_out[first + slot] = static_cast<int32_t>(KvSourcePosition(unit, source, slot));
    }
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

int64_t KvSourcePosition(const KvUnitView& unit, const KvBuildSource& source, int slot) {
  if ((source.block.flags & (kKvPosition | kKvRun)) == 0) {
    return int64_t{source.first_position} + slot;
  }
  return KvPositionOf(DataOf(unit, source.block), source.block, unit.shape, slot);
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

void KvDecoder::Keys(const KvUnitView& unit, const KvBuildSource& source, float* keys) {
  const KvBlockRef& block = source.block;
  const int head_dim = unit.shape.head_dim;
  const int block_tokens = unit.shape.block_tokens;
  const int bits = KvKeyBits(block.format);
  const KvBlockPieces pieces = KvPieces(block.format, block.flags, unit.shape);
  const std::byte* data = DataOf(unit, block);
  if (bits == 16) {
    return kernels_->transpose_half(reinterpret_cast<const Half*>(data), block_tokens, head_dim,
                                    block.count, keys, head_dim);
  }
  float* columns = columns_.Reserve(int64_t{head_dim} * block_tokens);
  const Half* scales = reinterpret_cast<const Half*>(data + pieces.key_scales);
  float steps[64];
  kernels_->to_float(steps, scales, block_tokens);
  for (int d = 0; d < head_dim; ++d) {
    float* row = columns + int64_t{d} * block_tokens;
    DecodeRow(*kernels_, bits,
              data + pieces.keys + d * KvPlaneRowBytes(block_tokens, KvLowerBits(bits)),
              data + pieces.key_upper + d * KvPlaneRowBytes(block_tokens, KvUpperBits(bits)),
              block_tokens, row);
    for (int e = 0; e < block_tokens; ++e) row[e] *= steps[e];
  }
  HadamardColumns(columns, head_dim, block_tokens);
  kernels_->transpose(columns, block_tokens, head_dim, block.count, keys, head_dim);
  if ((block.flags & kKvCentred) == 0) return;
  for (int slot = 0; slot < block.count; ++slot) {
    AddRotatedMean(*kernels_, unit, KvSourcePosition(unit, source, slot), 1.0f,
                   keys + int64_t{slot} * head_dim);
  }
}

void KvDecoder::Values(const KvUnitView& unit, const KvBlockRef& block, float* values) const {
  const int head_dim = unit.shape.head_dim;
  const int bits = KvValueBits(block.format);
  const KvBlockPieces pieces = KvPieces(block.format, block.flags, unit.shape);
  const std::byte* data = DataOf(unit, block);
  if (bits == 16) {
    kernels_->to_float(values, reinterpret_cast<const Half*>(data + pieces.values),
                       block.count * head_dim);
    return;
  }
  const Half* scales = reinterpret_cast<const Half*>(data + pieces.value_scales);
  for (int slot = 0; slot < block.count; ++slot) {
    float* value = values + int64_t{slot} * head_dim;
    DecodeRow(*kernels_, bits,
              data + pieces.values + slot * KvPlaneRowBytes(head_dim, KvLowerBits(bits)),
              data + pieces.value_upper + slot * KvPlaneRowBytes(head_dim, KvUpperBits(bits)),
              head_dim, value);
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
