#include "kernels/dot_products.h"

#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/vector_kernels.h"

namespace condense {

void DotProducts(const DotProductsArgs& args) {
  static const cpu::VectorKernels& kernels = cpu::GetVectorKernels(cpu::DetectCpuIsa());
  kernels.dot_products(args);
}

}  // namespace condense
