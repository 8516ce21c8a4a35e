#ifndef CONDENSE_KERNELS_CPU_MATMUL_H_
#define CONDENSE_KERNELS_CPU_MATMUL_H_

// Matrix products and row lookups on packed weights, for every weight format and instruction set.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/op_args.h"

namespace condense::cpu {

// Memory that Matmul needs while it runs: the quantized input. It grows to the largest shape seen
// and stays there, so that a running engine allocates nothing. Owned by the backend, one per thread
// that calls Matmul.
class MatmulScratch {
 public:
  // At least `size_bytes`, aligned to 64; the contents are lost when it grows.
  std::byte* Reserve(size_t size_bytes);

 private:
  struct Freer {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Freer> data_;
  size_t size_bytes_ = 0;
};

// Packed weights: x is quantized per row and 32 columns to 12 bits (see quantize_activations.h)
// and products inside a block are exact integers. Other weights: x stays float, sums are float. A
// row of y is the same, bit for bit, whatever T, its position and the number of threads, but
// differs between instruction sets by rounding. NaN and infinity in a row of x make the whole row
// of y non-finite. REQUIRES: all outputs have the same cols; the machine has `isa`; y overlaps
// neither x nor another output's y.
void Matmul(const MatmulArgs& args, CpuIsa isa, ThreadPool* pool, MatmulScratch* scratch);

void Embed(const EmbedArgs& args, ThreadPool* pool);

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_MATMUL_H_
