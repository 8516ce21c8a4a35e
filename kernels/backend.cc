#include "kernels/backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"

namespace condense {

Buffer::~Buffer() {
  if (data_ != nullptr) backend_->Free(data_, size_);
}

void Buffer::Swap(Buffer& other) {
  std::swap(backend_, other.backend_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options) {
  if (options.kind == "auto" || options.kind == "cpu") return cpu::MakeCpuBackend(options);
  if (options.kind == "cuda") {
    return absl::FailedPreconditionError(
        "backend 'cuda' is not part of this build; use --backend=cpu or auto");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown backend '", options.kind, "'; known are auto, cpu, cuda"));
}

}  // namespace condense
