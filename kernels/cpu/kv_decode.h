#ifndef CONDENSE_KERNELS_CPU_KV_DECODE_H_
#define CONDENSE_KERNELS_CPU_KV_DECODE_H_

// What the entries of KV blocks mean, as floats: the kv-read op, and what kv-build starts from.

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/kv_op_args.h"

namespace condense::cpu {

inline constexpr int kMaxHeadDim = 256;
inline constexpr int kMaxBlockTokens = 64;

// One unit whose blocks are decoded.
struct KvUnitView {
  const std::byte* arena = nullptr;
  KvBlockShape shape;
  const float* key_mean = nullptr;  // [D]; null when no block is centred
  PositionTable positions;
};

// positions [count].
void KvSourcePositions(const KvUnitView& unit, const KvBuildSource& source, int32_t* positions);

// x [D] = R(distance) x; negative distances turn back. REQUIRES: |distance| < num_positions.
void RotateKey(const VectorKernels& kernels, const PositionTable& positions, int64_t distance,
               int head_dim, float* x);
// key [D] += sign * R(position) mean.
void AddRotatedMean(const VectorKernels& kernels, const KvUnitView& unit, int64_t position,
                    float sign, float* key);

// One thread at a time, which need not be the one that made it. Keeps its scratch between calls.
// REQUIRES: head_dim <= kMaxHeadDim.
class KvDecoder {
 public:
  explicit KvDecoder(const VectorKernels* kernels) : kernels_(kernels) {}

  // The kv-read op.
  void Read(const KvReadArgs& args);

  // Of narrow blocks: the levels [count, D] as they are stored.
  void KeyLevels(const KvUnitView& unit, const KvBlockRef& block, float* levels);
  void ValueLevels(const KvUnitView& unit, const KvBlockRef& block, float* levels) const;
  // keys [count, D] after RoPE, as exact as stored.
  void Keys(const KvUnitView& unit, const KvBuildSource& source, float* keys);
  // values [count, D], untransformed.
  void Values(const KvUnitView& unit, const KvBlockRef& block, float* values) const;

 private:
  const VectorKernels* const kernels_;
  FloatScratch columns_;  // [D, B]: the keys of one block as they lie there
};

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_KV_DECODE_H_
