#ifndef CONDENSE_CACHE_UNIT_KEYS_H_
#define CONDENSE_CACHE_UNIT_KEYS_H_

// Position-free keys scaled to length one: their dot products are cosines.

#include <cstdint>
#include <span>

#include "cache/float_array.h"

namespace condense {

// Threads: immutable. A key that has no direction (zero, not finite) is alike to nothing: all its
// cosines are 0.
class UnitKeys {
 public:
  // keys [n, D]; D a multiple of 8.
  UnitKeys(std::span<const float> keys, int32_t head_dim);

  int32_t head_dim() const { return head_dim_; }
  const float* key(int32_t i) const { return keys_.data() + int64_t{i} * head_dim_; }
  float Cosine(int32_t i, int32_t j) const;

 private:
  int32_t head_dim_;
  FloatArray keys_;  // [n, D]
};

// The dot product of two vectors. D a multiple of 8.
float Dot(const float* a, const float* b, int32_t head_dim);

}  // namespace condense

#endif  // CONDENSE_CACHE_UNIT_KEYS_H_
