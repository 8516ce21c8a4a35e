// Inner loops of attention over narrow blocks, compiled once per instruction set: no guard, see
// vector_kernels_inl.h.

namespace condense::cpu::CONDENSE_SIMD_NAMESPACE {

inline constexpr int kGroupVectors = kKvCodeGroup / kLanes;

// R rows x V vectors of entries, from vector kFirst of a group of 32 on.
template <int kBits, int R, int V, int kFirst>
CONDENSE_SIMD_TARGET void QueryCodesTile(const QueryCodesArgs& args, int row, int entry) {
  constexpr int kLower = KvLowerBits(kBits);
  constexpr int kUpper = KvUpperBits(kBits);
  const float* q = args.q + static_cast<int64_t>(row) * args.head_dim;
  const std::byte* lower = args.lower + KvPlaneRowBytes(entry, kLower);
  const std::byte* upper = args.upper + KvPlaneRowBytes(entry, kUpper);
  const std::byte* next = args.next + KvPlaneRowBytes(entry, kLower);
  const int64_t lower_step = KvPlaneRowBytes(args.block_tokens, kLower);
  const int64_t upper_step = KvPlaneRowBytes(args.block_tokens, kUpper);
  Vec sum[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) sum[r][v] = Set(0.0f);
  }
  for (int d = 0; d < args.head_dim; ++d) {
    Vec level[V];
    LoadLevels<kBits, kFirst, V>(lower, upper, level);
    __builtin_prefetch(next);
    for (int r = 0; r < R; ++r) {
      const Vec query = Set(q[static_cast<int64_t>(r) * args.head_dim + d]);
      for (int v = 0; v < V; ++v) sum[r][v] = Fma(query, level[v], sum[r][v]);
    }
    lower += lower_step;
    upper += upper_step;
    next += lower_step;
  }
  for (int v = 0; v < V; ++v) {
    const int at = entry + (kFirst + v) * kLanes;
    const Vec scale = LoadHalf(args.scales + at);
    for (int r = 0; r < R; ++r) {
      Store(args.logits + (row + r) * args.logit_stride + at, Mul(sum[r][v], scale));
    }
  }
}

template <int kBits, int R, int kFirst>
CONDENSE_SIMD_TARGET void QueryCodesGroup(const QueryCodesArgs& args, int row, int entry) {
  constexpr int kVectors = KeyVectors(R);
  QueryCodesTile<kBits, R, kVectors, kFirst>(args, row, entry);
  if constexpr (kFirst + kVectors < kGroupVectors) {
    QueryCodesGroup<kBits, R, kFirst + kVectors>(args, row, entry);
  }
}

template <int kBits, int R>
CONDENSE_SIMD_TARGET void QueryCodesRows(const QueryCodesArgs& args, int row) {
  for (int entry = 0; entry < args.block_tokens; entry += kKvCodeGroup) {
    QueryCodesGroup<kBits, R, 0>(args, row, entry);
  }
}

// Weights times the scales of their values, [rows, 64].
inline constexpr int kScaledStride = 64;
CONDENSE_SIMD_TARGET inline void ScaleWeights(const WeightCodesArgs& args, int row, int rows,
                                              float* scaled) {
  for (int e = 0; e < args.entries; e += kLanes) {
    const int n = std::min(kLanes, args.entries - e);
    const Vec scale = LoadHalfFirst(args.scales + e, n);
    for (int r = 0; r < rows; ++r) {
      const float* weights = args.weights + (row + r) * args.weight_stride + e;
      Store(scaled + r * kScaledStride + e, Mul(LoadFirst(weights, n), scale));
    }
  }
}

// R rows x V vectors of dimensions, from vector kFirst of the group of 32 at `dim` on.
template <int kBits, int R, int V, int kFirst>
CONDENSE_SIMD_TARGET void WeightCodesTile(const WeightCodesArgs& args, const float* scaled, int row,
                                          int dim) {
  constexpr int kLower = KvLowerBits(kBits);
  constexpr int kUpper = KvUpperBits(kBits);
  const std::byte* lower = args.lower + KvPlaneRowBytes(dim, kLower);
  const std::byte* upper = args.upper + KvPlaneRowBytes(dim, kUpper);
  const std::byte* next = args.next + KvPlaneRowBytes(dim, kLower);
  const int64_t lower_step = KvPlaneRowBytes(args.head_dim, kLower);
  const int64_t upper_step = KvPlaneRowBytes(args.head_dim, kUpper);
  float* sums = args.sums + static_cast<int64_t>(row) * args.head_dim + dim + kFirst * kLanes;
  Vec sum[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      sum[r][v] = Load(sums + static_cast<int64_t>(r) * args.head_dim + v * kLanes);
    }
  }
  for (int e = 0; e < args.entries; ++e) {
    Vec level[V];
    LoadLevels<kBits, kFirst, V>(lower, upper, level);
    __builtin_prefetch(next);
    for (int r = 0; r < R; ++r) {
      const Vec weight = Set(scaled[r * kScaledStride + e]);
      for (int v = 0; v < V; ++v) sum[r][v] = Fma(weight, level[v], sum[r][v]);
    }
    lower += lower_step;
    upper += upper_step;
    next += lower_step;
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      Store(sums + static_cast<int64_t>(r) * args.head_dim + v * kLanes, sum[r][v]);
    }
  }
}

template <int kBits, int R, int kFirst>
CONDENSE_SIMD_TARGET void WeightCodesGroup(const WeightCodesArgs& args, const float* scaled,
                                           int row, int dim) {
  constexpr int kVectors = KeyVectors(R);
  WeightCodesTile<kBits, R, kVectors, kFirst>(args, scaled, row, dim);
  if constexpr (kFirst + kVectors < kGroupVectors) {
    WeightCodesGroup<kBits, R, kFirst + kVectors>(args, scaled, row, dim);
  }
}

// The dimensions behind the last whole group: heads whose size is no multiple of 32.
template <int kBits>
CONDENSE_SIMD_TARGET void WeightCodesRest(const WeightCodesArgs& args, const float* scaled, int row,
                                          int rows, int dim) {
  const KvCodePlanes planes = {const_cast<std::byte*>(args.lower),
                               const_cast<std::byte*>(args.upper)};
  const int n = args.head_dim - dim;
  float levels[kKvCodeGroup] = {};
  for (int e = 0; e < args.entries; ++e) {
    for (int i = 0; i < n; ++i) {
      levels[i] = KvLevel(kBits, KvReadCode(planes, kBits, args.head_dim, e, dim + i));
    }
    for (int r = 0; r < rows; ++r) {
      const Vec weight = Set(scaled[r * kScaledStride + e]);
      float* sums = args.sums + static_cast<int64_t>(row + r) * args.head_dim + dim;
      for (int i = 0; i < n; i += kLanes) {
        const int lanes = std::min(kLanes, n - i);
        StoreFirst(sums + i, Fma(weight, Load(levels + i), LoadFirst(sums + i, lanes)), lanes);
      }
    }
  }
}

template <int kBits, int R>
CONDENSE_SIMD_TARGET void WeightCodesRows(const WeightCodesArgs& args, int row) {
  alignas(64) float scaled[R * kScaledStride];
  ScaleWeights(args, row, R, scaled);
  int dim = 0;
  for (; dim + kKvCodeGroup <= args.head_dim; dim += kKvCodeGroup) {
    WeightCodesGroup<kBits, R, 0>(args, scaled, row, dim);
  }
  if (dim < args.head_dim) WeightCodesRest<kBits>(args, scaled, row, R, dim);
}

template <int... R>
struct CodeRowsTable {
  template <int kBits>
  static constexpr RowsFunction<QueryCodesArgs> kQuery[] = {&QueryCodesRows<kBits, R + 1>...};
  template <int kBits>
  static constexpr RowsFunction<WeightCodesArgs> kWeight[] = {&WeightCodesRows<kBits, R + 1>...};
};
template <int... R>
constexpr CodeRowsTable<R...> MakeCodeRowsTable(std::integer_sequence<int, R...>) {
  return {};
}
using CodeRows = decltype(MakeCodeRowsTable(std::make_integer_sequence<int, kMaxRows>()));

inline void QueryCodes(const QueryCodesArgs& args) {
  const auto* table = args.bits == 8   ? CodeRows::kQuery<8>
                      : args.bits == 6 ? CodeRows::kQuery<6>
                                       : CodeRows::kQuery<4>;
  for (int row = 0; row < args.rows; row += kMaxRows) {
    table[std::min(kMaxRows, args.rows - row) - 1](args, row);
  }
}

inline void WeightCodes(const WeightCodesArgs& args) {
  const auto* table = args.bits == 8   ? CodeRows::kWeight<8>
                      : args.bits == 4 ? CodeRows::kWeight<4>
                                       : CodeRows::kWeight<3>;
  for (int row = 0; row < args.rows; row += kMaxRows) {
    table[std::min(kMaxRows, args.rows - row) - 1](args, row);
  }
}

// Vectors kFirst and on of a group, as many at once as LoadLevels gives.
template <int kBits, int kFirst>
CONDENSE_SIMD_INLINE void StoreLevels(const std::byte* lower, const std::byte* upper, float* out) {
  constexpr int kVectors = KeyVectors(1);
  Vec level[kVectors];
  LoadLevels<kBits, kFirst, kVectors>(lower, upper, level);
  for (int v = 0; v < kVectors; ++v) Store(out + (kFirst + v) * kLanes, level[v]);
  if constexpr (kFirst + kVectors < kGroupVectors) {
    StoreLevels<kBits, kFirst + kVectors>(lower, upper, out);
  }
}

template <int kBits>
CONDENSE_SIMD_TARGET void LevelsOfWidth(const std::byte* lower, const std::byte* upper, int n,
                                        float* out) {
  for (int i = 0; i < n; i += kKvCodeGroup) {
    StoreLevels<kBits, 0>(lower + KvPlaneRowBytes(i, KvLowerBits(kBits)),
                          upper + KvPlaneRowBytes(i, KvUpperBits(kBits)), out + i);
  }
}

inline void Levels(int bits, const std::byte* lower, const std::byte* upper, int n, float* out) {
  const auto of_width = bits == 8   ? &LevelsOfWidth<8>
                        : bits == 6 ? &LevelsOfWidth<6>
                        : bits == 4 ? &LevelsOfWidth<4>
                                    : &LevelsOfWidth<3>;
  of_width(lower, upper, n, out);
}

CONDENSE_SIMD_TARGET inline void AddBias(float* logits, const Half* bias, float factor, int n) {
  const Vec scale = Set(factor);
  for (int i = 0; i < n; i += kLanes) {
    Store(logits + i, Fma(LoadHalf(bias + i), scale, Load(logits + i)));
  }
}

}  // namespace condense::cpu::CONDENSE_SIMD_NAMESPACE
