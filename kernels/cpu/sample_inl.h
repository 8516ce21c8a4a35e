// Inner loops over one row of logits, compiled once per instruction set: no guard, see
// vector_kernels_inl.h.

namespace condense::cpu::CONDENSE_SIMD_NAMESPACE {

static_assert(kSampleChunk % kLanes == 0);

CONDENSE_SIMD_TARGET inline bool ChunkMax(const float* logits, int n, float* chunk_max) {
  const float lowest = -std::numeric_limits<float>::infinity();
  bool below_infinity = true;
  for (int begin = 0; begin < n; begin += kSampleChunk) {
    const int end = std::min(n, begin + kSampleChunk);
    Vec max = Set(lowest);
    int i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      const Vec x = Load(logits + i);
      below_infinity &= AllBelowInfinity(x);
      max = Max(x, max);
    }
    if (i < end) {
      const Vec x = KeepLanes(LoadFirst(logits + i, end - i), 0, end - i, lowest);
      below_infinity &= AllBelowInfinity(x);
      max = Max(x, max);
    }
    chunk_max[begin / kSampleChunk] = ReduceMax(max);
  }
  return below_infinity;
}

CONDENSE_SIMD_TARGET inline void ChunkExpSum(const float* logits, int n, float max,
                                             float inverse_temperature, double* chunk_sum,
                                             float* weights) {
  const Vec shift = Set(max);
  const Vec factor = Set(inverse_temperature);
  for (int begin = 0; begin < n; begin += kSampleChunk) {
    const int end = std::min(n, begin + kSampleChunk);
    Vec sum = Set(0.0f);
    int i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      const Vec weight = Exp(Mul(Sub(Load(logits + i), shift), factor));
      sum = Add(sum, weight);
      if (weights != nullptr) Store(weights + i, weight);
    }
    if (i < end) {
      const Vec x = Mul(Sub(LoadFirst(logits + i, end - i), shift), factor);
      const Vec weight = KeepLanes(Exp(x), 0, end - i, 0.0f);
      sum = Add(sum, weight);
      if (weights != nullptr) StoreFirst(weights + i, weight, end - i);
    }
    chunk_sum[begin / kSampleChunk] = ReduceAdd(sum);
  }
}

}  // namespace condense::cpu::CONDENSE_SIMD_NAMESPACE
