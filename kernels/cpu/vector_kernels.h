#ifndef CONDENSE_KERNELS_CPU_VECTOR_KERNELS_H_
#define CONDENSE_KERNELS_CPU_VECTOR_KERNELS_H_

// The inner loops of attention, elementwise ops, products of keys and sampling as one table of
// functions per instruction set.
//
// Everything above them (parts, masks, threads, order of merging) is ordinary C++ in attention.cc,
// elementwise.cc, kv_ops.cc and sample.cc. Each function's result for a row is independent of the
// rows that it is called with.

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/kv_kernel_args.h"
#include "kernels/dot_products.h"

namespace condense::cpu {

// logits[r * logit_stride + e] = q[r] . key e, for every e in [0, block_tokens); summed over d in
// order by FMA.
struct QueryKeyArgs {
  const float* q = nullptr;  // [rows, head_dim]
  int32_t rows = 0;
  int32_t head_dim = 0;
  const Half* keys = nullptr;       // [head_dim, block_tokens]
  int32_t block_tokens = 0;         // 32 or 64
  const Half* next_keys = nullptr;  // prefetched; `keys` when there is no next block
  float* logits = nullptr;
  int64_t logit_stride = 0;
};

// sums[r] += weights[r * weight_stride + e] * values[e] for e in [0, entries), in order by FMA.
struct WeightValueArgs {
  const float* weights = nullptr;
  int64_t weight_stride = 0;
  int32_t rows = 0;
  const Half* values = nullptr;  // [entries, head_dim]
  int32_t entries = 0;
  int32_t head_dim = 0;
  const Half* next_values = nullptr;  // prefetched; `values` when there is no next block
  float* sums = nullptr;              // [rows, head_dim]
};

// What the softmax of a part leaves: weights are 2^(logit - max).
struct PartSoftmax {
  float max = 0.0f;
  float sum = 0.0f;
};

inline constexpr int kSampleChunk = 64;  // logits that share a maximum and a sum

struct VectorKernels {
  void (*query_key)(const QueryKeyArgs& args);
  void (*weight_value)(const WeightValueArgs& args);
  void (*query_codes)(const QueryCodesArgs& args);
  void (*weight_codes)(const WeightCodesArgs& args);
  AngleDigits angle_digits;
  // False when some distance is out of reach: nothing was added for those entries.
  bool (*add_mean_term)(const MeanTermArgs& args);
  // out[i] = level of code i of a row of n codes, n a multiple of 32; bits 8, 6, 4 or 3.
  void (*levels)(int bits, const std::byte* lower, const std::byte* upper, int n, float* out);
  // Levels that may lie between and beyond the real ones, as codes into the planes of a row; n a
  // multiple of 32.
  void (*pack_levels)(int bits, const float* levels, int n, std::byte* lower, std::byte* upper);
  // NaN when an element is not finite.
  float (*largest_magnitude)(const float* x, int n);
  // logits[i] += bias[i] * factor; n a multiple of 32.
  void (*add_bias)(float* logits, const Half* bias, float factor, int n);
  // Turns logits [from, to) into weights in place. Reads and writes whole vectors around them, at
  // most 15 floats.
  PartSoftmax (*softmax)(float* logits, int from, int to);
  // into = into * a + from * b.
  void (*combine)(float* into, float a, const float* from, float b, int n);
  // to = from * scale.
  void (*scale)(float* to, const float* from, float scale, int n);
  // into = max(into, from * scale), from >= 0.
  void (*max_scaled)(float* into, const float* from, float scale, int n);

  void (*rms_norm_row)(const float* x, const float* weight, int cols, float epsilon, float* out);
  void (*rope_adjacent)(float* x, const float* cos, const float* sin, int head_dim);
  void (*rope_half_split)(float* x, const float* cos, const float* sin, int head_dim);
  void (*gate_silu)(float* gate, const float* up, int64_t n);
  void (*gate_gelu_tanh)(float* gate, const float* up, int64_t n);
  void (*add)(float* x, const float* y, int64_t n);
  void (*to_half)(Half* to, const float* from, int n);   // n a multiple of 8
  void (*to_float)(float* to, const Half* from, int n);  // n a multiple of 8
  // See kernels/dot_products.h.
  void (*dot_products)(const DotProductsArgs& args);
  // See kernels/hadamard.h.
  void (*hadamard)(float* x, int n);
  // to[c * to_stride + r] = from[r * from_stride + c] for r in [0, rows), c in [0, cols).
  void (*transpose)(const float* from, int64_t from_stride, int rows, int cols, float* to,
                    int64_t to_stride);
  void (*transpose_half)(const Half* from, int64_t from_stride, int rows, int cols, float* to,
                         int64_t to_stride);

  // chunk_max[c] = maximum of chunk c. False when a logit is NaN or +infinity; the maxima are then
  // worthless.
  bool (*chunk_max)(const float* logits, int n, float* chunk_max);
  // chunk_sum[c] = sum over chunk c of exp((logit - max) * inverse_temperature), which also goes to
  // `weights` if that is not null.
  void (*chunk_exp_sum)(const float* logits, int n, float max, float inverse_temperature,
                        double* chunk_sum, float* weights);
};

// REQUIRES: the machine has `isa`.
const VectorKernels& GetVectorKernels(CpuIsa isa);

const VectorKernels& ScalarKernels();
const VectorKernels& Avx2Kernels();
const VectorKernels& Avx512Kernels();

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_VECTOR_KERNELS_H_
