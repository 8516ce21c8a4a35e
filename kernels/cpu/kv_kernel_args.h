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

// What centring took away: logits[r * logit_stride + e] += sum over i of
// coefficients[r][0][i] * cos[positions[e]][i] + coefficients[r][1][i] * sin[positions[e]][i].
struct MeanTermArgs {
  const float* coefficients = nullptr;  // [rows, 2, pairs]
  int32_t rows = 0;
  int32_t pairs = 0;       // D / 2
  int32_t first_pair = 0;  // coefficients of pairs outside [first_pair, end_pair) are zero
  int32_t end_pair = 0;
  const float* cos = nullptr;  // [*, pairs]
  const float* sin = nullptr;
  const int32_t* positions = nullptr;  // [entries rounded up to 32]
  int32_t entries = 0;                 // logits of the next entries up to a multiple of 32 are lost
  float* logits = nullptr;
  int64_t logit_stride = 0;
};

// The same for a block whose entries are at consecutive positions. As cos((base + e) x) is
// cos(base x) cos(e x) - sin(base x) sin(e x), and so on, turning the coefficients once makes the
// angles of the entries the same for every block.
struct MeanRunArgs {
  const float* coefficients = nullptr;  // [rows, 2, pairs]
  int32_t rows = 0;
  int32_t pairs = 0;
  int32_t first_pair = 0;
  int32_t end_pair = 0;
  const float* cos = nullptr;     // [pairs] at the position of the first entry
  const float* sin = nullptr;     // [pairs]
  float* turned = nullptr;        // [rows, 2, pairs], scratch
  const float* angles = nullptr;  // [2, pairs, block_tokens]: cosines, then sines, of 0, 1, ...
  int32_t block_tokens = 0;       // 32 or 64
  float* logits = nullptr;
  int64_t logit_stride = 0;
};

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_KV_KERNEL_ARGS_H_
