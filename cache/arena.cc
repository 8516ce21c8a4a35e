#include "cache/arena.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace condense {

Arena::Arena(Backend* backend, Buffer buffer, int64_t slab_bytes)
    : backend_(backend),
      slab_bytes_(slab_bytes),
      num_slabs_(buffer.size_bytes() / slab_bytes),
      buffer_(std::move(buffer)) {
  CHECK_EQ(slab_bytes % 64, 0);
  CHECK_GE(num_slabs_, 1);
  returned_.reserve(num_slabs_);
}

std::optional<int64_t> Arena::TryTake() {
  if (!returned_.empty()) {
    const int64_t slab = returned_.back();
    returned_.pop_back();
    num_discarded_ = std::min(num_discarded_, num_returned());
    return slab;
  }
  if (num_fresh_used_ == num_slabs_) return std::nullopt;
  return num_fresh_used_++ * slab_bytes_;
}

void Arena::Return(int64_t slab) {
  CHECK_EQ(slab % slab_bytes_, 0);
  CHECK_GE(slab, 0);
  CHECK_LT(slab / slab_bytes_, num_fresh_used_);
  CHECK_LT(num_returned(), num_fresh_used_);
  returned_.push_back(slab);
}

void Arena::Discard(int64_t keep, int64_t at_most) {
  for (; at_most > 0 && num_returned() - num_discarded_ > keep; --at_most) {
    backend_->Discard(data() + returned_[num_discarded_++], slab_bytes_);
  }
}

}  // namespace condense
