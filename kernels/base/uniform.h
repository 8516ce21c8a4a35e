#ifndef CONDENSE_KERNELS_BASE_UNIFORM_H_
#define CONDENSE_KERNELS_BASE_UNIFORM_H_

#include <cstdint>

namespace condense {

// A number in [0, 1) that is a function of both, without a pattern in either (the finalizer of
// SplitMix64, twice).
inline double Uniform(uint64_t seed, uint64_t index) {
  uint64_t x = seed + 0x9E3779B97F4A7C15u * (index + 1);
  for (int round = 0; round < 2; ++round) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
  }
  return static_cast<double>(x >> 11) * 0x1p-53;
}

}  // namespace condense

#endif  // CONDENSE_KERNELS_BASE_UNIFORM_H_
