// Quantizing for narrow blocks, compiled once per instruction set: no guard, see
// vector_kernels_inl.h.

namespace condense::cpu::CONDENSE_SIMD_NAMESPACE {

CONDENSE_SIMD_TARGET inline float LargestMagnitude(const float* x, int n) {
  Vec largest = Set(0.0f);
  Vec poison = Set(0.0f);  // 0 * infinity is NaN
  for (int i = 0; i < n; i += kLanes) {
    const Vec v = LoadFirst(x + i, n - i);
    largest = Max(largest, Abs(v));
    poison = Fma(v, Set(0.0f), poison);
  }
  return ReduceMax(largest) + ReduceAdd(poison);
}

// As KvCode, 32 at once.
template <int kBits>
CONDENSE_SIMD_INLINE void CodesOf(const float* levels, uint8_t* codes) {
  const float limit = kBits == 8 ? 127.0f : static_cast<float>((1 << kBits) - 1);
  for (int i = 0; i < kKvCodeGroup; i += kLanes) {
    const Vec inside = Max(Set(-limit), Min(Set(limit), Load(levels + i)));
    StoreBytes(codes + i, kBits == 8 ? Round(inside)
                                     : Mul(Add(Add(inside, Set(limit)), Set(1.0f)), Set(0.5f)));
  }
}

// The bits of 32 codes from `shift` on into a plane; see kv_codes.h. A word holds 8 codes.
template <int kPlaneBits>
inline void PackPlane(const uint64_t (&words)[4], int shift, std::byte* plane) {
  constexpr uint64_t kOnes = 0x0101010101010101u;
  constexpr uint64_t kMask = kOnes * ((1 << kPlaneBits) - 1);
  if constexpr (kPlaneBits == 4) {
    const uint64_t out[] = {((words[0] >> shift) & kMask) | ((words[2] >> shift) & kMask) << 4,
                            ((words[1] >> shift) & kMask) | ((words[3] >> shift) & kMask) << 4};
    std::memcpy(plane, out, sizeof(out));
  } else if constexpr (kPlaneBits == 2) {
    uint64_t out = 0;
    for (int i = 0; i < 4; ++i) out |= ((words[i] >> shift) & kMask) << (2 * i);
    std::memcpy(plane, &out, sizeof(out));
  } else {
    uint64_t out = 0;  // both halves of a word: even codes of four below, odd ones above
    for (int i = 0; i < 4; ++i) out |= ((words[i] >> shift) & kMask) << (2 * i);
    const uint32_t both = static_cast<uint32_t>(out) | static_cast<uint32_t>(out >> 32) << 1;
    std::memcpy(plane, &both, sizeof(both));
  }
}

template <int kBits>
CONDENSE_SIMD_TARGET void PackLevelsOfWidth(const float* levels, int n, std::byte* lower,
                                            std::byte* upper) {
  for (int i = 0; i < n; i += kKvCodeGroup) {
    std::byte* to = lower + KvPlaneRowBytes(i, KvLowerBits(kBits));
    alignas(64) uint8_t codes[kKvCodeGroup];
    CodesOf<kBits>(levels + i, codes);
    if constexpr (kBits == 8) {
      std::memcpy(to, codes, sizeof(codes));
    } else {
      uint64_t words[4];
      std::memcpy(words, codes, sizeof(codes));
      PackPlane<KvLowerBits(kBits)>(words, 0, to);
      if constexpr (KvUpperBits(kBits) > 0) {
        PackPlane<KvUpperBits(kBits)>(words, KvLowerBits(kBits),
                                      upper + KvPlaneRowBytes(i, KvUpperBits(kBits)));
      }
    }
  }
}

inline void PackLevels(int bits, const float* levels, int n, std::byte* lower, std::byte* upper) {
  const auto of_width = bits == 8   ? &PackLevelsOfWidth<8>
                        : bits == 6 ? &PackLevelsOfWidth<6>
                        : bits == 4 ? &PackLevelsOfWidth<4>
                                    : &PackLevelsOfWidth<3>;
  of_width(levels, n, lower, upper);
}

}  // namespace condense::cpu::CONDENSE_SIMD_NAMESPACE
