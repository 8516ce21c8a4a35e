#ifndef CONDENSE_KERNELS_CPU_MATMUL_KERNELS_H_
#define CONDENSE_KERNELS_CPU_MATMUL_KERNELS_H_

// The inner kernels of Matmul: one per weight format and instruction set, and the table that names
// them.

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/quantize_activations.h"
#include "kernels/packed_weights.h"

namespace condense::cpu {

// WeightTileBytes() for the inner loops.
template <WeightFormat kFormat>
inline constexpr int64_t kTileBytes = kFormat == WeightFormat::kPacked4   ? 320
                                      : kFormat == WeightFormat::kPacked8 ? 544
                                      : kFormat == WeightFormat::kF32     ? 64
                                                                          : 32;

// Products of 16 weight rows with one tile of rows of x.
struct GroupArgs {
  const std::byte* stream = nullptr;  // the row group's tiles
  int32_t cols = 0;                   // K
  int32_t num_tokens = 0;             // rows of x, in [1, kActivationTile]
  QuantizedTile quantized;            // packed formats
  const float* x = nullptr;           // float formats: [num_tokens, K]
  float* sums =
      nullptr;  // out [num_tokens, 16], aligned to 64 bytes: stays in the first-level cache
};
// For every token and weight row the same float operations in the same order, whatever num_tokens
// is.
using GroupKernel = void (*)(const GroupArgs& args);

inline constexpr int kNumWeightFormats = 5;
struct MatmulKernels {
  GroupKernel by_format[kNumWeightFormats];  // indexed by WeightFormat
};

extern const MatmulKernels kScalarMatmulKernels;
extern const MatmulKernels kAvx2MatmulKernels;
extern const MatmulKernels kAvx512VnniMatmulKernels;
// kAvx512Vnni on a machine with CpuHasAmx(): the same results, bit for bit.
extern const MatmulKernels kAmxMatmulKernels;

// REQUIRES of a kernel's caller: the machine has `isa`.
const MatmulKernels& MatmulKernelsFor(CpuIsa isa);

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_MATMUL_KERNELS_H_
