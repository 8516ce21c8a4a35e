#include "kernels/cpu/simd_avx2.h"
// The kernels are written against the header above.
#include "kernels/cpu/vector_kernels_inl.h"

namespace condense::cpu {

const VectorKernels& Avx2Kernels() { return avx2::kKernels; }

}  // namespace condense::cpu
