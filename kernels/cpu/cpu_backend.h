#ifndef CONDENSE_KERNELS_CPU_CPU_BACKEND_H_
#define CONDENSE_KERNELS_CPU_CPU_BACKEND_H_

// The CPU backend: run-time dispatch over instruction sets, one spin-then-park pool, huge pages for
// large buffers.

#include <memory>

#include "kernels/backend.h"

namespace condense::cpu {

// INVALID_ARGUMENT for an unknown instruction set, FAILED_PRECONDITION for one that this machine
// lacks.
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const BackendOptions& options);

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_CPU_BACKEND_H_
