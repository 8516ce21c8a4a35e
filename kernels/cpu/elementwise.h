#ifndef CONDENSE_KERNELS_CPU_ELEMENTWISE_H_
#define CONDENSE_KERNELS_CPU_ELEMENTWISE_H_

// Norm, rotary embedding, gate and addition: split over threads only where that costs less than it
// saves.

#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/op_args.h"

namespace condense::cpu {

void RmsNorm(const RmsNormArgs& args, const VectorKernels& kernels, ThreadPool* pool);
void Rope(const RopeArgs& args, const VectorKernels& kernels, ThreadPool* pool);
void Gate(const GateArgs& args, const VectorKernels& kernels, ThreadPool* pool);
void Add(const AddArgs& args, const VectorKernels& kernels, ThreadPool* pool);

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_ELEMENTWISE_H_
