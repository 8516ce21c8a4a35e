#include "kernels/cpu/simd_scalar.h"
// The kernels are written against the header above.
#include "kernels/cpu/vector_kernels_inl.h"

namespace condense::cpu {

const VectorKernels& ScalarKernels() { return scalar::kKernels; }

}  // namespace condense::cpu
