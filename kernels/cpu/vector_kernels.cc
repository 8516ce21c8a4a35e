#include "kernels/cpu/vector_kernels.h"

#include "kernels/base/check.h"

namespace condense::cpu {

const VectorKernels& GetVectorKernels(CpuIsa isa) {
  CHECK(CpuHas(isa));
  switch (isa) {
    case CpuIsa::kScalar:
      return ScalarKernels();
    case CpuIsa::kAvx2:
      return Avx2Kernels();
    case CpuIsa::kAvx512Vnni:
      return Avx512Kernels();
  }
  CheckFailed(__FILE__, __LINE__, "instruction set without kernels");
}

}  // namespace condense::cpu
