#include "cache/rope_table.h"

#include <cmath>
#include <cstdlib>

#include "kernels/base/check.h"

namespace condense {
namespace {

// Pair i is first[i * kStep] and second[i * kStep]. Steps known at compile time are vectorised.
template <int kStep>
void TurnPairs(int32_t half, const float* __restrict cos, const float* __restrict sin, float sign,
               float* __restrict first, float* __restrict second) {
  for (int32_t i = 0; i < half; ++i) {
    const float x = first[i * kStep], y = second[i * kStep], s = sign * sin[i];
    first[i * kStep] = x * cos[i] - y * s;
    second[i * kStep] = x * s + y * cos[i];
  }
}

}  // namespace

void RopeTable::Extend(int32_t max_turn) {
  const size_t half = frequencies_.radians.size();
  for (; num_positions_ <= max_turn; ++num_positions_) {
    for (size_t i = 0; i < half; ++i) {
      const double angle = num_positions_ * frequencies_.radians[i];
      cos_.push_back(static_cast<float>(std::cos(angle)));
      sin_.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

void RopeTable::Turn(int32_t turn, float* key) const {
  const int32_t size = std::abs(turn);
  DCHECK_LT(size, num_positions_);
  const int32_t half = frequencies_.head_dim() / 2;
  const float* cos = cos_.data() + int64_t{size} * half;
  const float* sin = sin_.data() + int64_t{size} * half;
  const float sign = turn < 0 ? -1.0f : 1.0f;
  if (frequencies_.pairing == RopePairing::kAdjacent) {
    TurnPairs<2>(half, cos, sin, sign, key, key + 1);
  } else {
    TurnPairs<1>(half, cos, sin, sign, key, key + half);
  }
}

void RopeTable::ToOrigin(std::span<const int32_t> positions, float* keys) const {
  const int32_t head_dim = frequencies_.head_dim();
  for (const int32_t position : positions) {
    Turn(-position, keys);
    keys += head_dim;
  }
}

}  // namespace condense
