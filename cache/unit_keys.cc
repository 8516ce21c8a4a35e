#include "cache/unit_keys.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace condense {

float Dot(const float* a, const float* b, int32_t head_dim) {
  // Eight sums side by side: a single one could not be vectorised without reordering additions.
  float sums[8] = {};
  for (int32_t d = 0; d < head_dim; d += 8) {
    for (int32_t lane = 0; lane < 8; ++lane) sums[lane] += a[d + lane] * b[d + lane];
  }
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

UnitKeys::UnitKeys(std::span<const float> keys, int32_t head_dim)
    : head_dim_(head_dim), keys_(keys.size()) {
  CHECK(head_dim > 0 && head_dim % 8 == 0);
  for (size_t first = 0; first < keys_.size(); first += head_dim) {
    const float* const key = keys.data() + first;
    float* const to = keys_.data() + first;
    const float square = Dot(key, key, head_dim);
    const bool has_direction = square > 0 && std::isfinite(square);
    if (!has_direction) {
      std::fill_n(to, head_dim, 0.0f);
      continue;
    }
    const float scale = 1.0f / std::sqrt(square);
    for (int32_t d = 0; d < head_dim; ++d) to[d] = key[d] * scale;
  }
}

float UnitKeys::Cosine(int32_t i, int32_t j) const { return Dot(key(i), key(j), head_dim_); }

}  // namespace condense
