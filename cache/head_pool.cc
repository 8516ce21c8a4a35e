#include "cache/head_pool.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

absl::Status CheckShare(const char* name, double value) {
  if (value > 0.0 && value <= 1.0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %g, must be above 0 and at most 1", name, value));
}

}  // namespace

absl::Status HeadPoolOptions::Validate() const {
  RETURN_IF_ERROR(CheckShare("pool_preallocate", preallocate));
  RETURN_IF_ERROR(CheckShare("pool_grow_at", grow_at));
  RETURN_IF_ERROR(CheckShare("pool_grow_by", grow_by));
  if (cap_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("pool_cap_bytes is %d, must be 0 (no cap) or more", cap_bytes));
  }
  return absl::OkStatus();
}

HeadPool::HeadPool(const HeadPoolOptions& options, int64_t estimate_bytes)
    : grow_at_(options.grow_at), cap_bytes_(options.cap_bytes > 0 ? options.cap_bytes : INT64_MAX) {
  const double start = options.preallocate * static_cast<double>(estimate_bytes);
  capacity_bytes_ = std::min(cap_bytes_, std::max<int64_t>(1, static_cast<int64_t>(start)));
  step_bytes_ = std::max<int64_t>(
      1, static_cast<int64_t>(options.grow_by * static_cast<double>(capacity_bytes_)));
}

void HeadPool::Take(int64_t bytes) {
  used_bytes_ += bytes;
  const auto limit = static_cast<int64_t>(static_cast<double>(used_bytes_) / grow_at_);
  if (limit <= capacity_bytes_ || capacity_bytes_ == cap_bytes_) return;
  const int64_t steps = (limit - capacity_bytes_ + step_bytes_ - 1) / step_bytes_;
  capacity_bytes_ = std::min(cap_bytes_, capacity_bytes_ + steps * step_bytes_);
  ++num_growths_;
}

void HeadPool::Give(int64_t bytes) {
  CHECK_LE(bytes, used_bytes_);
  used_bytes_ -= bytes;
}

}  // namespace condense
