#include "kernels/cpu/simd_avx512.h"
// The kernels are written against the header above.
#include "kernels/cpu/vector_kernels_inl.h"

namespace condense::cpu {

const VectorKernels& Avx512Kernels() { return avx512::kKernels; }

}  // namespace condense::cpu
