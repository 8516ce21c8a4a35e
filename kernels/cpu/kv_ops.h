#ifndef CONDENSE_KERNELS_CPU_KV_OPS_H_
#define CONDENSE_KERNELS_CPU_KV_OPS_H_

// Writing keys and values into blocks.

#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/op_args.h"

namespace condense::cpu {

// REQUIRES: head_dim <= 256; the newest entries lie in 16-bit blocks.
void KvAppend(const KvAppendArgs& args, const VectorKernels& kernels, ThreadPool* pool);

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_KV_OPS_H_
