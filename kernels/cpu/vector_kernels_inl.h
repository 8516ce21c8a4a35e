// The kernels of one instruction set and their table. Included once by each vector_kernels_<isa>.cc
// after its simd_<isa>.h, which is why neither this header nor those that it includes has a guard.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/cpu/vector_kernels.h"
#include "kernels/hadamard.h"
#include "kernels/kv_codes.h"

namespace condense::cpu::CONDENSE_SIMD_NAMESPACE {

// e^x within 2 ulp for x in [-87, 88]; larger x are taken as 88, smaller ones give 0, NaN stays
// NaN.
CONDENSE_SIMD_INLINE Vec Exp(Vec x) {
  const Vec bounded = Max(Set(-87.0f), Min(Set(88.0f), x));
  const Vec n = Round(Mul(bounded, Set(1.44269504f)));
  // ln 2 in two pieces, so that the remainder in [-0.35, 0.35] is exact to the last bit.
  const Vec r = FmaNegated(n, Set(-2.12194440e-4f), FmaNegated(n, Set(0.693359375f), bounded));
  Vec p = Set(1.0f / 5040.0f);
  p = Fma(p, r, Set(1.0f / 720.0f));
  p = Fma(p, r, Set(1.0f / 120.0f));
  p = Fma(p, r, Set(1.0f / 24.0f));
  p = Fma(p, r, Set(1.0f / 6.0f));
  p = Fma(p, r, Set(0.5f));
  p = Fma(p, r, Set(1.0f));
  p = Fma(p, r, Set(1.0f));
  return ZeroWhereLess(Scale2(p, n), x, -87.0f);
}

// 2^x for x <= 0; below 2^-100 the result is 0, so that products with values stay clear of
// denormals. NaN stays NaN.
CONDENSE_SIMD_INLINE Vec Exp2NonPositive(Vec x) {
  const Vec bounded = Max(Set(-100.0f), x);
  const Vec n = Round(bounded);
  const Vec r = Sub(bounded, n);
  // Taylor coefficients ln(2)^k / k!; the remainder is in [-0.5, 0.5].
  Vec p = Set(1.52527338e-5f);
  p = Fma(p, r, Set(1.54035304e-4f));
  p = Fma(p, r, Set(1.33335581e-3f));
  p = Fma(p, r, Set(9.61812911e-3f));
  p = Fma(p, r, Set(5.55041087e-2f));
  p = Fma(p, r, Set(2.40226507e-1f));
  p = Fma(p, r, Set(6.93147181e-1f));
  p = Fma(p, r, Set(1.0f));
  return ZeroWhereLess(Scale2(p, n), x, -100.0f);
}

// Vectors of entries that one pass over the keys takes: 32 entries at most, the smallest block.
inline constexpr int KeyVectors(int rows) { return std::min(VectorsPerRow(rows), 32 / kLanes); }

}  // namespace condense::cpu::CONDENSE_SIMD_NAMESPACE

#include "kernels/cpu/attention_inl.h"
#include "kernels/cpu/elementwise_inl.h"
// After both: it is made of parts of them.
#include "kernels/cpu/dot_products_inl.h"
#include "kernels/cpu/kv_codes_inl.h"
#include "kernels/cpu/kv_pack_inl.h"
#include "kernels/cpu/mean_term_inl.h"
#include "kernels/cpu/sample_inl.h"

namespace condense::cpu::CONDENSE_SIMD_NAMESPACE {

inline constexpr VectorKernels kKernels = {
    .query_key = &QueryKey,
    .weight_value = &WeightValue,
    .query_codes = &QueryCodes,
    .weight_codes = &WeightCodes,
    .angle_digits = kAngleDigits,
    .add_mean_term = &AddMeanTerm,
    .levels = &Levels,
    .pack_levels = &PackLevels,
    .largest_magnitude = &LargestMagnitude,
    .add_bias = &AddBias,
    .softmax = &Softmax,
    .combine = &Combine,
    .scale = &Scale,
    .max_scaled = &MaxScaled,
    .rms_norm_row = &RmsNormRow,
    .rope_adjacent = &RopeAdjacent,
    .rope_half_split = &RopeHalfSplit,
    .gate_silu = &GateSilu,
    .gate_gelu_tanh = &GateGeluTanh,
    .add = &AddTo,
    .to_half = &ToHalfRow,
    .to_float = &ToFloatRow,
    .dot_products = &DotProducts,
    .hadamard = &HadamardRow,
    .transpose = &Transpose<float>,
    .transpose_half = &Transpose<Half>,
    .chunk_max = &ChunkMax,
    .chunk_exp_sum = &ChunkExpSum,
};

}  // namespace condense::cpu::CONDENSE_SIMD_NAMESPACE
