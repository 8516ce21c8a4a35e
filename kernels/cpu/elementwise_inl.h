// Inner loops of the elementwise ops, compiled once per instruction set: no guard, see
// vector_kernels_inl.h.

namespace condense::cpu::CONDENSE_SIMD_NAMESPACE {

CONDENSE_SIMD_TARGET inline float SumOfSquares(const float* x, int n) {
  // Four chains hide the latency; which chain a column belongs to depends on its index only.
  Vec sum[4] = {Set(0.0f), Set(0.0f), Set(0.0f), Set(0.0f)};
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int v = 0; v < 4; ++v) {
      const Vec part = Load(x + i + v * kLanes);
      sum[v] = Fma(part, part, sum[v]);
    }
  }
  for (int v = 0; i < n; i += kLanes, ++v) {
    const Vec part = LoadFirst(x + i, std::min(kLanes, n - i));
    sum[v] = Fma(part, part, sum[v]);
  }
  return ReduceAdd(Add(Add(sum[0], sum[2]), Add(sum[1], sum[3])));
}

CONDENSE_SIMD_TARGET inline void RmsNormRow(const float* x, const float* weight, int cols,
                                            float epsilon, float* out) {
  const float mean = SumOfSquares(x, cols) / static_cast<float>(cols);
  const Vec factor = Set(1.0f / std::sqrt(mean + epsilon));
  int i = 0;
  for (; i + kLanes <= cols; i += kLanes) {
    Store(out + i, Mul(Mul(Load(x + i), factor), Load(weight + i)));
  }
  if (i < cols) {
    const int left = cols - i;
    StoreFirst(out + i, Mul(Mul(LoadFirst(x + i, left), factor), LoadFirst(weight + i, left)),
               left);
  }
}

CONDENSE_SIMD_TARGET inline void RopeAdjacent(float* x, const float* cos, const float* sin,
                                              int head_dim) {
  int d = 0;
  for (; d + kLanes <= head_dim; d += kLanes) {
    Store(x + d, RotatePairs(Load(x + d), cos + d / 2, sin + d / 2));
  }
  for (; d < head_dim; d += 2) {
    const float even = x[d];
    const float odd = x[d + 1];
    x[d] = even * cos[d / 2] - odd * sin[d / 2];
    x[d + 1] = odd * cos[d / 2] + even * sin[d / 2];
  }
}

CONDENSE_SIMD_TARGET inline void RopeHalfSplit(float* x, const float* cos, const float* sin,
                                               int head_dim) {
  const int half = head_dim / 2;
  for (int d = 0; d < half; d += kLanes) {
    const int lanes = std::min(kLanes, half - d);
    const Vec first = LoadFirst(x + d, lanes);
    const Vec second = LoadFirst(x + half + d, lanes);
    const Vec c = LoadFirst(cos + d, lanes);
    const Vec s = LoadFirst(sin + d, lanes);
    StoreFirst(x + d, FmaNegated(second, s, Mul(first, c)), lanes);
    StoreFirst(x + half + d, Fma(first, s, Mul(second, c)), lanes);
  }
}

// x / (1 + e^-x).
CONDENSE_SIMD_INLINE Vec Silu(Vec x) { return Div(x, Add(Set(1.0f), Exp(Sub(Set(0.0f), x)))); }

// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), and 0.5 (1 + tanh(u)) = 1 / (1 + e^-2u).
CONDENSE_SIMD_INLINE Vec GeluTanh(Vec x) {
  const Vec cubic = Fma(Mul(Mul(x, x), x), Set(0.044715f), x);
  return Div(x, Add(Set(1.0f), Exp(Mul(cubic, Set(-1.5957691216057308f)))));
}

CONDENSE_SIMD_TARGET inline void GateSilu(float* gate, const float* up, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(gate + i, Mul(Silu(Load(gate + i)), Load(up + i)));
  if (i < n) {
    const int left = static_cast<int>(n - i);
    StoreFirst(gate + i, Mul(Silu(LoadFirst(gate + i, left)), LoadFirst(up + i, left)), left);
  }
}

CONDENSE_SIMD_TARGET inline void GateGeluTanh(float* gate, const float* up, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(gate + i, Mul(GeluTanh(Load(gate + i)), Load(up + i)));
  if (i < n) {
    const int left = static_cast<int>(n - i);
    StoreFirst(gate + i, Mul(GeluTanh(LoadFirst(gate + i, left)), LoadFirst(up + i, left)), left);
  }
}

CONDENSE_SIMD_TARGET inline void AddTo(float* x, const float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(x + i, Add(Load(x + i), Load(y + i)));
  for (; i < n; ++i) x[i] += y[i];
}

CONDENSE_SIMD_TARGET inline void ToHalfRow(Half* to, const float* from, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) StoreHalf(to + i, Load(from + i));
  for (; i < n; ++i) to[i] = ToHalf(from[i]);
}

CONDENSE_SIMD_TARGET inline void ToFloatRow(float* to, const Half* from, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(to + i, LoadHalf(from + i));
  for (; i < n; ++i) to[i] = ToFloat(from[i]);
}

CONDENSE_SIMD_INLINE Vec LoadAs(const float* p) { return Load(p); }
CONDENSE_SIMD_INLINE Vec LoadAs(const Half* p) { return LoadHalf(p); }
inline float ToFloatAs(float x) { return x; }
inline float ToFloatAs(Half x) { return ToFloat(x); }

template <typename T>
CONDENSE_SIMD_TARGET void Transpose(const T* from, int64_t from_stride, int rows, int cols,
                                    float* to, int64_t to_stride) {
  const int whole_rows = rows / kLanes * kLanes;
  const int whole_cols = cols / kLanes * kLanes;
  for (int c = 0; c < whole_cols; c += kLanes) {
    for (int r = 0; r < whole_rows; r += kLanes) {
      Vec tile[kLanes];
      for (int i = 0; i < kLanes; ++i) tile[i] = LoadAs(from + (r + i) * from_stride + c);
      TransposeLanes(tile);
      for (int i = 0; i < kLanes; ++i) Store(to + (c + i) * to_stride + r, tile[i]);
    }
  }
  for (int c = 0; c < cols; ++c) {
    for (int r = c < whole_cols ? whole_rows : 0; r < rows; ++r) {
      to[c * to_stride + r] = ToFloatAs(from[r * from_stride + c]);
    }
  }
}

// The steps of a Hadamard transform between the lanes of a vector: runs of 1 ... kLanes / 2.
template <int kRun>
CONDENSE_SIMD_INLINE Vec HadamardLanes(Vec v) {
  v = Add(SwapRuns<kRun>(v), NegateOddRuns<kRun>(v));
  if constexpr (2 * kRun < kLanes) return HadamardLanes<2 * kRun>(v);
  return v;
}

// One run of kVectors vectors, in registers.
template <int kVectors>
CONDENSE_SIMD_INLINE void HadamardRun(float* x, Vec factor) {
  Vec v[kVectors];
  for (int i = 0; i < kVectors; ++i) v[i] = HadamardLanes<1>(Load(x + i * kLanes));
  for (int half = 1; half < kVectors; half *= 2) {
    for (int i = 0; i < kVectors; ++i) {
      if ((i & half) != 0) continue;
      const Vec a = v[i];
      v[i] = Add(a, v[i + half]);
      v[i + half] = Sub(a, v[i + half]);
    }
  }
  for (int i = 0; i < kVectors; ++i) Store(x + i * kLanes, Mul(v[i], factor));
}

template <int kVectors>
CONDENSE_SIMD_TARGET void HadamardRuns(float* x, int n, float factor) {
  for (int i = 0; i < n; i += kVectors * kLanes) HadamardRun<kVectors>(x + i, Set(factor));
}

// The same sums as Hadamard, in the same order.
CONDENSE_SIMD_TARGET inline void HadamardRow(float* x, int n) {
  const int width = HadamardWidth(n);
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  if (width < kLanes) return Hadamard(x, n);
  if (width == kLanes) return HadamardRuns<1>(x, n, scale);
  if (width == 2 * kLanes) return HadamardRuns<2>(x, n, scale);
  if (width == 4 * kLanes) return HadamardRuns<4>(x, n, scale);
  if (width == 8 * kLanes) return HadamardRuns<8>(x, n, scale);
  for (int i = 0; i < n; i += kLanes) Store(x + i, HadamardLanes<1>(Load(x + i)));
  for (int half = kLanes; half < width; half *= 2) {
    for (int first = 0; first < n; first += 2 * half) {
      for (int i = first; i < first + half; i += kLanes) {
        const Vec a = Load(x + i);
        const Vec b = Load(x + i + half);
        Store(x + i, Add(a, b));
        Store(x + i + half, Sub(a, b));
      }
    }
  }
  const Vec factor = Set(scale);
  for (int i = 0; i < n; i += kLanes) Store(x + i, Mul(Load(x + i), factor));
}

}  // namespace condense::cpu::CONDENSE_SIMD_NAMESPACE
