#ifndef CONDENSE_KERNELS_CPU_SIMD_SCALAR_H_
#define CONDENSE_KERNELS_CPU_SIMD_SCALAR_H_

// The portable body of the vector vocabulary that the *_inl.h kernels are written in: 8 lanes in
// plain C++.
//
// Each simd_*.h defines the same names in its own namespace, and CONDENSE_SIMD_TARGET, the
// attribute that every kernel function carries. A translation unit includes exactly one of them.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/base/dtype.h"
#include "kernels/cpu/kv_kernel_args.h"
#include "kernels/kv_codes.h"

#define CONDENSE_SIMD_NAMESPACE scalar
#define CONDENSE_SIMD_TARGET
#define CONDENSE_SIMD_INLINE inline __attribute__((always_inline))

namespace condense::cpu::scalar {

inline constexpr int kLanes = 8;
// Rows of queries that one key or value load serves, and vectors per row, chosen by register count.
inline constexpr int kMaxRows = 4;
inline constexpr int VectorsPerRow(int /*rows*/) { return 1; }

struct Vec {
  float lane[kLanes];
};

#define CONDENSE_LANES(expression)                           \
  Vec out;                                                   \
  for (int i = 0; i < kLanes; ++i) out.lane[i] = expression; \
  return out

CONDENSE_SIMD_INLINE Vec Set(float x) { CONDENSE_LANES(x); }
CONDENSE_SIMD_INLINE Vec Load(const float* p) { CONDENSE_LANES(p[i]); }
// The first n lanes; the rest are zero and not read.
CONDENSE_SIMD_INLINE Vec LoadFirst(const float* p, int n) { CONDENSE_LANES(i < n ? p[i] : 0.0f); }
CONDENSE_SIMD_INLINE Vec LoadHalf(const Half* p) { CONDENSE_LANES(ToFloat(p[i])); }
CONDENSE_SIMD_INLINE Vec LoadHalfFirst(const Half* p, int n) {
  CONDENSE_LANES(i < n ? ToFloat(p[i]) : 0.0f);
}
CONDENSE_SIMD_INLINE void Store(float* p, const Vec& v) {
  for (int i = 0; i < kLanes; ++i) p[i] = v.lane[i];
}
CONDENSE_SIMD_INLINE void StoreFirst(float* p, const Vec& v, int n) {
  for (int i = 0; i < n; ++i) p[i] = v.lane[i];
}
CONDENSE_SIMD_INLINE void StoreHalf(Half* p, const Vec& v) {
  for (int i = 0; i < kLanes; ++i) p[i] = ToHalf(v.lane[i]);
}

CONDENSE_SIMD_INLINE Vec Add(const Vec& a, const Vec& b) { CONDENSE_LANES(a.lane[i] + b.lane[i]); }
CONDENSE_SIMD_INLINE Vec Sub(const Vec& a, const Vec& b) { CONDENSE_LANES(a.lane[i] - b.lane[i]); }
CONDENSE_SIMD_INLINE Vec Mul(const Vec& a, const Vec& b) { CONDENSE_LANES(a.lane[i] * b.lane[i]); }
CONDENSE_SIMD_INLINE Vec Div(const Vec& a, const Vec& b) { CONDENSE_LANES(a.lane[i] / b.lane[i]); }
// a * b + c, and c - a * b.
CONDENSE_SIMD_INLINE Vec Fma(const Vec& a, const Vec& b, const Vec& c) {
  CONDENSE_LANES(a.lane[i] * b.lane[i] + c.lane[i]);
}
CONDENSE_SIMD_INLINE Vec FmaNegated(const Vec& a, const Vec& b, const Vec& c) {
  CONDENSE_LANES(c.lane[i] - a.lane[i] * b.lane[i]);
}
// Where either operand is NaN, the second one is returned.
CONDENSE_SIMD_INLINE Vec Max(const Vec& a, const Vec& b) {
  CONDENSE_LANES(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]);
}
CONDENSE_SIMD_INLINE Vec Min(const Vec& a, const Vec& b) {
  CONDENSE_LANES(a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]);
}
CONDENSE_SIMD_INLINE Vec Round(const Vec& a) {
  // Adding 1.5 * 2^23 leaves no fraction bits: correct for |a| < 2^22, and exponents are below 200.
  CONDENSE_LANES((a.lane[i] + 12582912.0f) - 12582912.0f);
}
// a * 2^n for integral n in [-126, 127]. A NaN in n comes with one in a, which stays; it must not
// be converted to an integer.
CONDENSE_SIMD_INLINE Vec Scale2(const Vec& a, const Vec& n) {
  CONDENSE_LANES(a.lane[i] *
                 std::bit_cast<float>(
                     (static_cast<uint32_t>(
                         static_cast<int32_t>(n.lane[i] > -126.0f ? n.lane[i] : -126.0f) + 127))
                     << 23));
}
// a where x >= limit (or x is NaN), else 0.
CONDENSE_SIMD_INLINE Vec ZeroWhereLess(const Vec& a, const Vec& x, float limit) {
  CONDENSE_LANES(x.lane[i] < limit ? 0.0f : a.lane[i]);
}
// Lanes [from, to) of v; the others are `fill`.
CONDENSE_SIMD_INLINE Vec KeepLanes(const Vec& v, int from, int to, float fill) {
  CONDENSE_LANES(i >= from && i < to ? v.lane[i] : fill);
}
// True when every lane is below +infinity and none is NaN.
CONDENSE_SIMD_INLINE bool AllBelowInfinity(const Vec& v) {
  bool all = true;
  for (int i = 0; i < kLanes; ++i) all = all && v.lane[i] < HUGE_VALF;
  return all;
}
CONDENSE_SIMD_INLINE float ReduceAdd(const Vec& v) {
  return ((v.lane[0] + v.lane[4]) + (v.lane[2] + v.lane[6])) +
         ((v.lane[1] + v.lane[5]) + (v.lane[3] + v.lane[7]));
}
CONDENSE_SIMD_INLINE float ReduceMax(const Vec& v) {
  float max = v.lane[0];
  for (int i = 1; i < kLanes; ++i) max = max > v.lane[i] ? max : v.lane[i];
  return max;
}
// Adjacent pairs of x rotated by the kLanes / 2 angles at cos and sin.
CONDENSE_SIMD_INLINE Vec RotatePairs(const Vec& x, const float* cos, const float* sin) {
  Vec out;
  for (int i = 0; i < kLanes; i += 2) {
    out.lane[i] = x.lane[i] * cos[i / 2] - x.lane[i + 1] * sin[i / 2];
    out.lane[i + 1] = x.lane[i + 1] * cos[i / 2] + x.lane[i] * sin[i / 2];
  }
  return out;
}

// The lanes as bytes, rounded towards zero; lanes in [-128, 128).
CONDENSE_SIMD_INLINE void StoreBytes(uint8_t* p, const Vec& v) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<uint8_t>(static_cast<int>(v.lane[i]));
}
CONDENSE_SIMD_INLINE Vec Abs(const Vec& v) { CONDENSE_LANES(std::abs(v.lane[i])); }

// Every two neighbouring runs of lanes change places; the second of them changes its sign.
template <int kRun>
CONDENSE_SIMD_INLINE Vec SwapRuns(const Vec& v) {
  CONDENSE_LANES(v.lane[i ^ kRun]);
}
template <int kRun>
CONDENSE_SIMD_INLINE Vec NegateOddRuns(const Vec& v) {
  CONDENSE_LANES((i & kRun) != 0 ? -v.lane[i] : v.lane[i]);
}

// x[i].lane[j] becomes x[j].lane[i].
CONDENSE_SIMD_INLINE void TransposeLanes(Vec (&x)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < i; ++j) std::swap(x[i].lane[j], x[j].lane[i]);
  }
}

// Digits of a distance, each looked up in one table of 2^bits floats.
inline constexpr AngleDigits kAngleDigits = {5, 2};
CONDENSE_SIMD_INLINE Vec Gather(const float* from, const int32_t* index) {
  CONDENSE_LANES(from[index[i]]);
}
struct Index {
  int lane[kLanes];
};
CONDENSE_SIMD_INLINE Index LoadIndex(const uint16_t* p) {
  Index out;
  for (int i = 0; i < kLanes; ++i) out.lane[i] = p[i];
  return out;
}
CONDENSE_SIMD_INLINE Index ShiftIndex(Index i, int bits) {
  for (int& lane : i.lane) lane >>= bits;
  return i;
}
// table[the lowest digit].
CONDENSE_SIMD_INLINE Vec LookUp(const float* table, const Index& index) {
  CONDENSE_LANES(table[index.lane[i] % (1 << kAngleDigits.bits)]);
}
// v where index < limit, else 0.
CONDENSE_SIMD_INLINE Vec KeepWhereBelow(const Vec& v, const Index& index, int limit) {
  CONDENSE_LANES(index.lane[i] < limit ? v.lane[i] : 0.0f);
}
CONDENSE_SIMD_INLINE bool AllBelow(const Index& index, int limit) {
  bool all = true;
  for (const int lane : index.lane) all = all && lane < limit;
  return all;
}

// Vectors kFirst, kFirst + 1, ... of the group of 32 codes that begins at `lower` and `upper` (see
// kv_codes.h), as levels. kBits 8, 6, 4 or 3; `upper` is read for 6 and 3.
template <int kBits, int kFirst, int kVectors>
CONDENSE_SIMD_INLINE void LoadLevels(const std::byte* lower, const std::byte* upper, Vec* out) {
  constexpr int kLower = KvLowerBits(kBits);
  constexpr int kUpper = KvUpperBits(kBits);
  for (int v = 0; v < kVectors; ++v) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int i = (kFirst + v) * kLanes + lane;
      int code = (std::to_integer<int>(lower[i % (4 * kLower)]) >> (i / (4 * kLower) * kLower)) &
                 ((1 << kLower) - 1);
      if constexpr (kUpper > 0) {
        const int high =
            std::to_integer<int>(upper[i % (4 * kUpper)]) >> (i / (4 * kUpper) * kUpper);
        code |= (high & ((1 << kUpper) - 1)) << kLower;
      }
      out[v].lane[lane] = KvLevel(kBits, code);
    }
  }
}

#undef CONDENSE_LANES

}  // namespace condense::cpu::scalar

#endif  // CONDENSE_KERNELS_CPU_SIMD_SCALAR_H_
