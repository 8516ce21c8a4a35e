#ifndef CONDENSE_KERNELS_CPU_SCRATCH_H_
#define CONDENSE_KERNELS_CPU_SCRATCH_H_

// Working memory that an op keeps between calls, so that a running engine allocates nothing.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "kernels/base/check.h"

namespace condense::cpu {

// Grows to the largest size asked and stays there. One thread at a time.
class FloatScratch {
 public:
  // `size` floats aligned to 64 bytes, not initialized; what an earlier call returned is lost when
  // it grows.
  float* Reserve(int64_t size) {
    if (size <= size_) return data_.get();
    const size_t bytes = (static_cast<size_t>(size) * sizeof(float) + 63) / 64 * 64;
    data_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    CHECK(data_ != nullptr);
    size_ = size;
    return data_.get();
  }

 private:
  struct Freer {
    void operator()(float* data) const { std::free(data); }
  };
  std::unique_ptr<float, Freer> data_;
  int64_t size_ = 0;
};

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_SCRATCH_H_
