// What centring took from the keys, added to logits; compiled once per instruction set: no guard,
// see vector_kernels_inl.h.

namespace condense::cpu::CONDENSE_SIMD_NAMESPACE {

CONDENSE_SIMD_TARGET inline void TurnCoefficients(const MeanTermArgs& args) {
  const int64_t stride = args.pair_stride;
  for (int64_t k = 0; k < args.num_pairs; k += kLanes) {
    const Vec cos = Gather(args.cos, args.pairs + k);
    const Vec sin = Gather(args.sin, args.pairs + k);
    for (int row = 0; row < args.rows; ++row) {
      const float* a = args.coefficients + row * 2 * stride + k;
      float* turned = args.turned + row * 2 * stride + k;
      const Vec va = Load(a);
      const Vec vb = Load(a + stride);
      Store(turned, Fma(va, cos, Mul(vb, sin)));
      Store(turned + stride, FmaNegated(va, sin, Mul(vb, cos)));
    }
  }
}

// Entries at consecutive positions. R rows x V vectors of entries.
template <int R, int V>
CONDENSE_SIMD_TARGET void AddMeanRunTile(const MeanTermArgs& args, int row, int entry) {
  const int64_t step = kAngleDigits.table_floats(args.block_tokens);
  const int64_t stride = args.pair_stride;
  const float* turned = args.turned + row * 2 * stride;
  float* logits = args.logits + row * args.logit_stride + entry;
  Vec sum[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) sum[r][v] = Load(logits + r * args.logit_stride + v * kLanes);
  }
  for (int k = 0; k < args.num_pairs; ++k) {
    const float* cos = args.angles + args.pairs[k] * step + entry;
    const float* sin = cos + args.block_tokens;
    Vec c[V];
    Vec s[V];
    for (int v = 0; v < V; ++v) {
      c[v] = Load(cos + v * kLanes);
      s[v] = Load(sin + v * kLanes);
    }
    for (int r = 0; r < R; ++r) {
      const Vec a = Set(turned[r * 2 * stride + k]);
      const Vec b = Set(turned[r * 2 * stride + stride + k]);
      for (int v = 0; v < V; ++v) sum[r][v] = Fma(s[v], b, Fma(c[v], a, sum[r][v]));
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) Store(logits + r * args.logit_stride + v * kLanes, sum[r][v]);
  }
}

template <int R>
CONDENSE_SIMD_TARGET bool AddMeanRunRows(const MeanTermArgs& args, int row) {
  constexpr int kVectors = std::min(2, KeyVectors(R));
  for (int entry = 0; entry < args.block_tokens; entry += kVectors * kLanes) {
    AddMeanRunTile<R, kVectors>(args, row, entry);
  }
  return true;
}

// Entries at any distance from the base, whose angle is the sum of its digits' angles.
template <int R, int V>
CONDENSE_SIMD_TARGET bool AddMeanGapsTile(const MeanTermArgs& args, int row, int entry) {
  const int64_t step = kAngleDigits.table_floats(args.block_tokens);
  const int64_t stride = args.pair_stride;
  const float* turned = args.turned + row * 2 * stride;
  Index digits[kAngleDigits.digits][V];
  Vec sum[R][V];
  for (int v = 0; v < V; ++v) {
    digits[0][v] = LoadIndex(args.distances + entry + v * kLanes);
    for (int i = 1; i < kAngleDigits.digits; ++i) {
      digits[i][v] = ShiftIndex(digits[i - 1][v], kAngleDigits.bits);
    }
    for (int r = 0; r < R; ++r) sum[r][v] = Set(0.0f);
  }
  for (int k = 0; k < args.num_pairs; ++k) {
    const float* table = args.angles + args.pairs[k] * step + 2 * args.block_tokens;
    for (int v = 0; v < V; ++v) {
      Vec cos = LookUp(table, digits[0][v]);
      Vec sin = LookUp(table + kAngleDigits.values(), digits[0][v]);
      for (int i = 1; i < kAngleDigits.digits; ++i) {
        const float* of_digit = table + 2 * i * kAngleDigits.values();
        const Vec c = LookUp(of_digit, digits[i][v]);
        const Vec s = LookUp(of_digit + kAngleDigits.values(), digits[i][v]);
        const Vec turned_cos = FmaNegated(sin, s, Mul(cos, c));
        sin = Fma(sin, c, Mul(cos, s));
        cos = turned_cos;
      }
      for (int r = 0; r < R; ++r) {
        const Vec a = Set(turned[r * 2 * stride + k]);
        const Vec b = Set(turned[r * 2 * stride + stride + k]);
        sum[r][v] = Fma(sin, b, Fma(cos, a, sum[r][v]));
      }
    }
  }
  bool near = true;
  for (int v = 0; v < V; ++v) {
    near = near && AllBelow(digits[0][v], kAngleDigits.reach());
    for (int r = 0; r < R; ++r) {
      float* logits = args.logits + (row + r) * args.logit_stride + entry + v * kLanes;
      const Vec term = KeepWhereBelow(sum[r][v], digits[0][v], kAngleDigits.reach());
      Store(logits, Add(Load(logits), term));
    }
  }
  return near;
}

template <int R>
CONDENSE_SIMD_TARGET bool AddMeanGapsRows(const MeanTermArgs& args, int row) {
  constexpr int kVectors = std::min(2, KeyVectors(R));
  bool near = true;
  for (int entry = 0; entry < args.block_tokens; entry += kVectors * kLanes) {
    near = AddMeanGapsTile<R, kVectors>(args, row, entry) && near;
  }
  return near;
}

using MeanRowsFunction = bool (*)(const MeanTermArgs& args, int row);
template <int... R>
struct MeanRowsTable {
  static constexpr MeanRowsFunction kRun[] = {&AddMeanRunRows<R + 1>...};
  static constexpr MeanRowsFunction kGaps[] = {&AddMeanGapsRows<R + 1>...};
};
template <int... R>
constexpr MeanRowsTable<R...> MakeMeanRowsTable(std::integer_sequence<int, R...>) {
  return {};
}
using MeanRows = decltype(MakeMeanRowsTable(std::make_integer_sequence<int, kMaxRows>()));

inline bool AddMeanTerm(const MeanTermArgs& args) {
  TurnCoefficients(args);
  const MeanRowsFunction* table = args.distances == nullptr ? MeanRows::kRun : MeanRows::kGaps;
  bool near = true;
  for (int row = 0; row < args.rows; row += kMaxRows) {
    near = table[std::min(kMaxRows, args.rows - row) - 1](args, row) && near;
  }
  return near;
}

}  // namespace condense::cpu::CONDENSE_SIMD_NAMESPACE
