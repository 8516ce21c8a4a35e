// Inner loops of attention, compiled once per instruction set: no guard, see vector_kernels_inl.h.

namespace condense::cpu::CONDENSE_SIMD_NAMESPACE {

// R rows x V vectors of entries. Every lane runs the same chain of FMAs whatever R and V are.
template <int R, int V>
CONDENSE_SIMD_TARGET void QueryKeyTile(const QueryKeyArgs& args, int row, int entry) {
  const float* q = args.q + static_cast<int64_t>(row) * args.head_dim;
  const Half* keys = args.keys + entry;
  const Half* next = args.next_keys + entry;
  Vec sum[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) sum[r][v] = Set(0.0f);
  }
  for (int d = 0; d < args.head_dim; ++d) {
    Vec key[V];
    for (int v = 0; v < V; ++v) key[v] = LoadHalf(keys + v * kLanes);
    __builtin_prefetch(next);
    for (int r = 0; r < R; ++r) {
      const Vec query = Set(q[static_cast<int64_t>(r) * args.head_dim + d]);
      for (int v = 0; v < V; ++v) sum[r][v] = Fma(query, key[v], sum[r][v]);
    }
    keys += args.block_tokens;
    next += args.block_tokens;
  }
  for (int r = 0; r < R; ++r) {
    float* logits = args.logits + (row + r) * args.logit_stride + entry;
    for (int v = 0; v < V; ++v) Store(logits + v * kLanes, sum[r][v]);
  }
}

template <int R>
CONDENSE_SIMD_TARGET void QueryKeyRows(const QueryKeyArgs& args, int row) {
  constexpr int kVectors = KeyVectors(R);
  for (int entry = 0; entry < args.block_tokens; entry += kVectors * kLanes) {
    QueryKeyTile<R, kVectors>(args, row, entry);
  }
}

// R rows x V vectors of dimensions, of which the first `lanes` exist when V is 1.
template <int R, int V, bool kWhole>
CONDENSE_SIMD_TARGET void WeightValueTile(const WeightValueArgs& args, int row, int dim,
                                          int lanes) {
  const float* weights = args.weights + row * args.weight_stride;
  const Half* values = args.values + dim;
  const Half* next = args.next_values + dim;
  float* sums = args.sums + static_cast<int64_t>(row) * args.head_dim + dim;
  Vec sum[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      const float* from = sums + static_cast<int64_t>(r) * args.head_dim + v * kLanes;
      sum[r][v] = kWhole ? Load(from) : LoadFirst(from, lanes);
    }
  }
  for (int e = 0; e < args.entries; ++e) {
    Vec value[V];
    for (int v = 0; v < V; ++v) {
      value[v] = kWhole ? LoadHalf(values + v * kLanes) : LoadHalfFirst(values, lanes);
    }
    __builtin_prefetch(next);
    if (V * kLanes > 32) __builtin_prefetch(next + 32);
    for (int r = 0; r < R; ++r) {
      const Vec weight = Set(weights[r * args.weight_stride + e]);
      for (int v = 0; v < V; ++v) sum[r][v] = Fma(weight, value[v], sum[r][v]);
    }
    values += args.head_dim;
    next += args.head_dim;
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      float* to = sums + static_cast<int64_t>(r) * args.head_dim + v * kLanes;
      if (kWhole) {
        Store(to, sum[r][v]);
      } else {
        StoreFirst(to, sum[r][v], lanes);
      }
    }
  }
}

template <int R>
CONDENSE_SIMD_TARGET void WeightValueRows(const WeightValueArgs& args, int row) {
  constexpr int kVectors = VectorsPerRow(R);
  int dim = 0;
  for (; dim + kVectors * kLanes <= args.head_dim; dim += kVectors * kLanes) {
    WeightValueTile<R, kVectors, true>(args, row, dim, kLanes);
  }
  for (; dim + kLanes <= args.head_dim; dim += kLanes) {
    WeightValueTile<R, 1, true>(args, row, dim, kLanes);
  }
  if (dim < args.head_dim) WeightValueTile<R, 1, false>(args, row, dim, args.head_dim - dim);
}

template <typename Args>
using RowsFunction = void (*)(const Args&, int row);

template <int... R>
struct RowsTable {
  static constexpr RowsFunction<QueryKeyArgs> kQueryKey[] = {&QueryKeyRows<R + 1>...};
  static constexpr RowsFunction<WeightValueArgs> kWeightValue[] = {&WeightValueRows<R + 1>...};
};
template <int... R>
constexpr RowsTable<R...> MakeRowsTable(std::integer_sequence<int, R...>) {
  return {};
}
using Rows = decltype(MakeRowsTable(std::make_integer_sequence<int, kMaxRows>()));

inline void QueryKey(const QueryKeyArgs& args) {
  for (int row = 0; row < args.rows; row += kMaxRows) {
    Rows::kQueryKey[std::min(kMaxRows, args.rows - row) - 1](args, row);
  }
}

inline void WeightValue(const WeightValueArgs& args) {
  for (int row = 0; row < args.rows; row += kMaxRows) {
    Rows::kWeightValue[std::min(kMaxRows, args.rows - row) - 1](args, row);
  }
}

CONDENSE_SIMD_TARGET inline PartSoftmax Softmax(float* logits, int from, int to) {
  const float lowest = -std::numeric_limits<float>::infinity();
  const int first = from / kLanes * kLanes;
  Vec max = Set(lowest);
  for (int e = first; e < to; e += kLanes) {
    max = Max(max, KeepLanes(Load(logits + e), from - e, to - e, lowest));
  }
  PartSoftmax part;
  part.max = ReduceMax(max);
  const Vec shift = Set(part.max);
  Vec sum = Set(0.0f);
  for (int e = first; e < to; e += kLanes) {
    const Vec weight =
        KeepLanes(Exp2NonPositive(Sub(Load(logits + e), shift)), from - e, to - e, 0.0f);
    Store(logits + e, weight);
    sum = Add(sum, weight);
  }
  part.sum = ReduceAdd(sum);
  return part;
}

CONDENSE_SIMD_TARGET inline void Combine(float* into, float a, const float* from, float b, int n) {
  const Vec va = Set(a);
  const Vec vb = Set(b);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Store(into + i, Fma(Load(into + i), va, Mul(Load(from + i), vb)));
  }
  if (i < n) {
    StoreFirst(into + i, Fma(LoadFirst(into + i, n - i), va, Mul(LoadFirst(from + i, n - i), vb)),
               n - i);
  }
}

CONDENSE_SIMD_TARGET inline void Scale(float* to, const float* from, float scale, int n) {
  const Vec factor = Set(scale);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(to + i, Mul(Load(from + i), factor));
  if (i < n) StoreFirst(to + i, Mul(LoadFirst(from + i, n - i), factor), n - i);
}

CONDENSE_SIMD_TARGET inline void MaxScaled(float* into, const float* from, float scale, int n) {
  const Vec factor = Set(scale);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Store(into + i, Max(Load(into + i), Mul(Load(from + i), factor)));
  }
  if (i < n) {
    StoreFirst(into + i, Max(LoadFirst(into + i, n - i), Mul(LoadFirst(from + i, n - i), factor)),
               n - i);
  }
}

}  // namespace condense::cpu::CONDENSE_SIMD_NAMESPACE
