// Products of rows with each other, compiled once per instruction set: no guard, see
// vector_kernels_inl.h.

namespace condense::cpu::CONDENSE_SIMD_NAMESPACE {

// R rows x V vectors of columns. Every lane runs the same chain of FMAs whatever R and V are.
template <int R, int V>
CONDENSE_SIMD_TARGET void DotTile(const DotProductsArgs& args, int row, int column) {
  const int stride = DotProductStride(args.num_rows);
  const float* rows = args.rows + static_cast<int64_t>(row) * args.head_dim;
  const float* columns = args.scratch + column;
  Vec sum[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) sum[r][v] = Set(0.0f);
  }
  for (int d = 0; d < args.head_dim; ++d) {
    Vec other[V];
    for (int v = 0; v < V; ++v) other[v] = Load(columns + v * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec one = Set(rows[static_cast<int64_t>(r) * args.head_dim + d]);
      for (int v = 0; v < V; ++v) sum[r][v] = Fma(one, other[v], sum[r][v]);
    }
    columns += stride;
  }
  for (int r = 0; r < R; ++r) {
    float* out = args.out + static_cast<int64_t>(row + r) * stride + column;
    for (int v = 0; v < V; ++v) Store(out + v * kLanes, sum[r][v]);
  }
}

// From the diagonal on.
template <int R>
CONDENSE_SIMD_TARGET void DotRows(const DotProductsArgs& args, int row) {
  constexpr int kColumns = KeyVectors(R) * kLanes;
  for (int column = row / kColumns * kColumns; column < args.num_rows; column += kColumns) {
    DotTile<R, KeyVectors(R)>(args, row, column);
  }
}

template <int... R>
struct DotRowsTable {
  static constexpr RowsFunction<DotProductsArgs> kFunctions[] = {&DotRows<R + 1>...};
};
template <int... R>
constexpr DotRowsTable<R...> MakeDotRowsTable(std::integer_sequence<int, R...>) {
  return {};
}
using DotRowsOf = decltype(MakeDotRowsTable(std::make_integer_sequence<int, kMaxRows>()));

inline void DotProducts(const DotProductsArgs& args) {
  const int stride = DotProductStride(args.num_rows);
  Transpose(args.rows, args.head_dim, args.num_rows, args.head_dim, args.scratch, stride);
  for (int d = 0; d < args.head_dim; ++d) {
    float* const row = args.scratch + static_cast<int64_t>(d) * stride;
    std::fill(row + args.num_rows, row + stride, 0.0f);
  }
  for (int row = 0; row < args.num_rows; row += kMaxRows) {
    DotRowsOf::kFunctions[std::min(kMaxRows, args.num_rows - row) - 1](args, row);
  }
}

}  // namespace condense::cpu::CONDENSE_SIMD_NAMESPACE
