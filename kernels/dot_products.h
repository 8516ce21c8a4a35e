#ifndef CONDENSE_KERNELS_DOT_PRODUCTS_H_
#define CONDENSE_KERNELS_DOT_PRODUCTS_H_

// Dot products of vectors with each other. A function of the host: plans compare keys there,
// whatever backend holds the blocks.

#include <cstdint>

namespace condense {

// Rows of products are this far apart: m rounded up to whole vectors of any instruction set.
constexpr int32_t DotProductStride(int32_t num_rows) { return (num_rows + 31) / 32 * 32; }

struct DotProductsArgs {
  const float* rows = nullptr;  // [m, D]
  int32_t num_rows = 0;         // m
  int32_t head_dim = 0;         // D
  float* scratch = nullptr;     // [D, stride]: undefined before and after
  float* out = nullptr;         // [m, stride]
};

// out[i, j] = rows[i] . rows[j] for i <= j < m; the other elements are undefined afterwards. Each
// is summed in the order of d, with the rounding of an FMA where the machine has one: within D *
// 2^-24 of the sum of |products|, and on one machine the same bits for the same two rows, whatever
// m is. Uses the machine's best instruction set. Threads: any. Cost: m * m * D / 2 multiplications.
void DotProducts(const DotProductsArgs& args);

}  // namespace condense

#endif  // CONDENSE_KERNELS_DOT_PRODUCTS_H_
