#ifndef CONDENSE_KERNELS_CPU_KV_KERNEL_ARGS_H_
#define CONDENSE_KERNELS_CPU_KV_KERNEL_ARGS_H_

// The arguments of attention's inner loops over narrow KV blocks; see vector_kernels.h.

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"

namespace condense::cpu {

// Narrow keys of a block: logits[r * logit_stride + e] = scale of e * (q[r] . levels of e), for
// every e in [0, block_tokens); summed over d in order by FMA.
struct QueryCodesArgs {
  const float* q = nullptr;  // [rows, head_dim], transformed as the keys were
  int32_t rows = 0;
  int32_t head_dim = 0;
  int32_t bits = 0;                  // 8, 6 or 4
  const std::byte* lower = nullptr;  // [head_dim, block_tokens] codes
  const std::byte* upper = nullptr;  // 6 bits only
  const Half* scales = nullptr;      // [block_tokens]
  int32_t block_tokens = 0;          // 32 or 64
  const std::byte* next = nullptr;   // lower plane of the next block, prefetched
  float* logits = nullptr;
  int64_t logit_stride = 0;
};

// Narrow values: sums[r] += weights[r * weight_stride + e] * scale of e * levels of e, for e in
// [0, entries), in order by FMA.
struct WeightCodesArgs {
  const float* weights = nullptr;
  int64_t weight_stride = 0;
  int32_t rows = 0;
  int32_t head_dim = 0;
  int32_t bits = 0;                  // 8, 4 or 3
  const std::byte* lower = nullptr;  // [entries, head_dim] codes
  const std::byte* upper = nullptr;  // 3 bits only
  const Half* scales = nullptr;      // [entries]
  int32_t entries = 0;               // 64 at most
  const std::byte* next = nullptr;   // lower plane of the next block, prefetched
  float* sums = nullptr;             // [rows, head_dim]
};

// How an instruction set looks up the angles of a distance: digit by digit, lowest first, each of
// `bits` bits; distances of `reach` and more have too many digits.
struct AngleDigits {
  int32_t bits = 0;
  int32_t digits = 0;
  constexpr int32_t values() const { return 1 << bits; }
  constexpr int32_t reach() const { return 1 << (bits * digits); }
  // Floats of the table of one frequency pair: see MeanTermArgs::angles.
  constexpr int32_t table_floats(int block_tokens) const {
    return 2 * block_tokens + 2 * digits * values();
  }
};

// What centring took away: logits[r * logit_stride + e] += sum over the pairs k of
// coefficients[r][0][k] * cos(angle of pair k at e's position) + coefficients[r][1][k] * sin(...).
// As cos(x + y) is cos x cos y - sin x sin y, and so on, turning the coefficients once to the
// block's base makes the angles of distances the same for every block, and small tables of a
// distance's digits give them all.
struct MeanTermArgs {
  const float* coefficients = nullptr;  // [rows, 2, pair_stride], zero from num_pairs on
  int32_t rows = 0;
  int32_t num_pairs = 0;
  int32_t pair_stride = 0;         // a multiple of 16
  const int32_t* pairs = nullptr;  // [pair_stride], below D / 2; any from num_pairs on
  const float* cos = nullptr;      // [D / 2] at the block's base
  const float* sin = nullptr;      // [D / 2]
  float* turned = nullptr;         // [rows, 2, pair_stride], scratch
  // [D / 2][table_floats]: cosines of the distances 0 ... B - 1, their sines; then for each digit
  // the cosines of its values, their sines.
  const float* angles = nullptr;
  const uint16_t* distances = nullptr;  // [block_tokens]; null: 0, 1, 2 ...
  int32_t block_tokens = 0;             // 32 or 64
  float* logits = nullptr;
  int64_t logit_stride = 0;
};

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_KV_KERNEL_ARGS_H_
