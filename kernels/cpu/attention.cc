#include "kernels/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"

namespace condense::cpu {
namespace {

constexpr int kMaxBlockTokens = 64;
// A block may begin before a part and end after it; its lanes then fall into the padding.
constexpr int kWeightPad = kMaxBlockTokens;
constexpr int64_t kWeightStride = kWeightPad + kAttentionPart + kWeightPad;
// Rows of a tile: their weights of one part stay in the second-level cache beside the part's keys
// and values.
constexpr int kTileRows = 48;
// A sequence with this many tiles or fewer is spread over the threads by parts.
constexpr int kSplitTiles = 2;
constexpr int64_t kSoftmaxFloats = sizeof(PartSoftmax) / sizeof(float);
constexpr float kLog2E = 1.44269504088896341f;
constexpr double kLn2 = 0.693147180559945309;

int NumParts(int64_t entries) {
  return static_cast<int>((entries + kAttentionPart - 1) / kAttentionPart);
}

int Group(const AttentionArgs& args) { return args.num_heads / args.num_kv_heads; }

// The keys, or the values, of some blocks of a list, then the other half of others: what is read
// one after the other.
class ReadOrder {
 public:
  ReadOrder(const KvList& list, int end, int then, bool values)
      : list_(list), end_(end), then_(then), values_(values) {}

  // What is read `kAhead` steps after the half of `block`: far enough to have arrived by then.
  KvBlockReader::Ahead After(int block) const {
    constexpr int kAhead = 2;
    const int at = block + kAhead;
    if (at < end_) return {&list_.blocks[at], values_};
    return {&list_.blocks[std::min(then_ + at - end_, list_.num_blocks - 1)], !values_};
  }

 private:
  const KvList& list_;
  const int end_;   // blocks of the first half
  const int then_;  // where the other half begins
  const bool values_;
};

// The first block from `block` on, which begins at `first_entry`, that begins at `to` or later.
int EndBlock(const KvList& list, int block, int first_entry, int to) {
  while (block < list.num_blocks && first_entry < to) first_entry += list.blocks[block++].count;
  return block;
}

// Several tiles of a unit may hold the maximum; order does not matter to a maximum.
void StoreMaximum(float* to, float value) {
  std::atomic_ref<float> shared(*to);
  float seen = shared.load(std::memory_order_relaxed);
  while (!(seen >= value) &&
         !shared.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

AttentionRunner::AttentionRunner(const VectorKernels* kernels, ThreadPool* pool)
    : kernels_(kernels), pool_(pool), mean_(kernels), workers_(pool->num_threads()) {}

int AttentionRunner::Rows(const AttentionArgs& args, const Tile& tile) const {
  return tile.num_tokens * Group(args);
}

AttentionRunner::Range AttentionRunner::Visible(const AttentionArgs& args, const Unit& unit,
                                                int token) const {
  if (whole_list_) return {0, unit.list->num_entries};
  const int to = unit.list->num_entries - (unit.sequence->num_tokens - 1 - token);
  return {args.window > 0 ? std::max(0, to - args.window) : 0, to};
}

void AttentionRunner::Run(const AttentionArgs& args) {
  CHECK_EQ(args.num_heads % args.num_kv_heads, 0);
  CHECK_LE(args.shape.block_tokens, kMaxBlockTokens);
  Plan(args);
  split_partials_ = partials_.Reserve(partials_size_);
  FillMeanTables(args);
  pool_->Run(static_cast<int>(items_.size()),
             [&](int item, int worker) { RunItem(args, items_[item], &workers_[worker]); });
  pool_->Run(static_cast<int>(split_tiles_.size()), [&](int index, int worker) {
    const Tile& tile = tiles_[split_tiles_[index]];
    FinishTile(args, tile, split_partials_ + tile.partial, &workers_[worker]);
  });
}

void AttentionRunner::FillMeanTables(const AttentionArgs& args) {
  bool centred = false;
  bool gaps = false;
  for (const Unit& unit : units_) {
    centred = centred || unit.centred;
    gaps = gaps || unit.centred_gaps;
  }
  if (centred) mean_.Fill(args.key_mean, args.num_kv_heads, args.positions, args.shape, gaps);
}

void AttentionRunner::Evaluate(const KvEvaluateArgs& args) {
  const KvSequenceArgs queries = {0, args.num_queries, &args.list};
  AttentionArgs attention;
  attention.q = args.q;
  attention.arena = args.arena;
  attention.shape = args.shape;
  attention.num_heads = args.group;
  attention.num_kv_heads = 1;
  attention.num_sequences = 1;
  attention.sequences = &queries;
  attention.scale = args.scale;
  attention.key_mean = args.key_mean;
  attention.positions = args.positions;
  attention.out = args.out;
  attention.log_sum_exp = args.log_sum_exp;
  whole_list_ = true;
  mass_ = args.mass;
  Run(attention);
  whole_list_ = false;
  mass_ = nullptr;
}

void AttentionRunner::Plan(const AttentionArgs& args) {
  units_.clear();
  part_starts_.clear();
  tiles_.clear();
  items_.clear();
  split_tiles_.clear();
  partials_size_ = 0;
  for (int s = 0; s < args.num_sequences; ++s) {
    for (int g = 0; g < args.num_kv_heads; ++g) PlanUnit(args, s, g);
  }
  // The longest items first, so that the threads end together.
  std::stable_sort(items_.begin(), items_.end(), [&](const Item& a, const Item& b) {
    const auto cost = [&](const Item& item) {
      const Tile& tile = tiles_[item.tile];
      return int64_t{tile.num_tokens} * (item.part >= 0 ? 1 : tile.end_part - tile.first_part);
    };
    return cost(a) > cost(b);
  });
}

void AttentionRunner::PlanUnit(const AttentionArgs& args, int sequence, int kv_head) {
  Unit unit;
  unit.sequence = &args.sequences[sequence];
  unit.list = &unit.sequence->lists[kv_head];
  unit.kv_head = kv_head;
  unit.first_part_start = static_cast<int64_t>(part_starts_.size());
  if (args.evidence != nullptr) {
    unit.evidence =
        args.evidence + args.evidence_offset[int64_t{sequence} * args.num_kv_heads + kv_head];
    std::fill_n(unit.evidence, unit.list->num_entries, 0.0f);
  }
  int next_part = 0;  // first entry of the next part
  int first_entry = 0;
  for (int b = 0; b < unit.list->num_blocks; ++b) {
    const KvBlockRef& block = unit.list->blocks[b];
    const int end = first_entry + block.count;
    unit.rotated_keys |= KvKeysRotated(block.format);
    unit.rotated_values |= args.out != nullptr && KvValuesRotated(block.format);
    unit.centred |= (block.flags & kKvCentred) != 0;
    unit.centred_gaps |= (block.flags & kKvCentred) != 0 && (block.flags & kKvPosition) != 0;
    for (; next_part < end; next_part += kAttentionPart) part_starts_.push_back({b, first_entry});
    first_entry = end;
  }
  CHECK_EQ(first_entry, unit.list->num_entries);
  CHECK(whole_list_ || unit.sequence->num_tokens <= unit.list->num_entries);
  CHECK(!unit.centred || args.key_mean != nullptr);
  units_.push_back(unit);
  PlanTiles(args, static_cast<int>(units_.size()) - 1);
}

void AttentionRunner::PlanTiles(const AttentionArgs& args, int unit_index) {
  const Unit& unit = units_[unit_index];
  const int num_tokens = unit.sequence->num_tokens;
  const int tile_tokens = std::max(1, kTileRows / Group(args));
  const bool few_tiles = num_tokens <= kSplitTiles * tile_tokens;
  for (int first = 0; first < num_tokens; first += tile_tokens) {
    Tile tile;
    tile.unit = unit_index;
    tile.first_token = first;
    tile.num_tokens = std::min(tile_tokens, num_tokens - first);
    tile.first_part = Visible(args, unit, first).from / kAttentionPart;
    tile.end_part = NumParts(Visible(args, unit, first + tile.num_tokens - 1).to);
    const int index = static_cast<int>(tiles_.size());
    if (few_tiles && tile.end_part - tile.first_part > 1) {
      tile.partial = partials_size_;
      partials_size_ += PartResultSize(args, tile) * (tile.end_part - tile.first_part);
      split_tiles_.push_back(index);
      for (int part = tile.first_part; part < tile.end_part; ++part)
        items_.push_back({index, part});
    } else {
      items_.push_back({index, -1});
    }
    tiles_.push_back(tile);
  }
}

int64_t AttentionRunner::SumsPerRow(const AttentionArgs& args, const Tile& tile) const {
  if (args.out == nullptr) return 0;
  return args.shape.head_dim * (units_[tile.unit].rotated_values ? 2 : 1);
}

int64_t AttentionRunner::PartResultSize(const AttentionArgs& args, const Tile& tile) const {
  return Rows(args, tile) *
         (SumsPerRow(args, tile) + kSoftmaxFloats + (KeepsWeights(args) ? kWeightStride : 0));
}

AttentionRunner::PartResult AttentionRunner::ResultAt(const AttentionArgs& args, const Tile& tile,
                                                      float* partials, int part,
                                                      Worker* worker) const {
  const int rows = Rows(args, tile);
  float* at = partials + (part - tile.first_part) * PartResultSize(args, tile);
  float* const behind_sums = at + rows * SumsPerRow(args, tile);
  PartResult result;
  result.sums = at;
  if (units_[tile.unit].rotated_values) {
    result.rotated_sums = at + int64_t{rows} * args.shape.head_dim;
  }
  result.softmax = reinterpret_cast<PartSoftmax*>(behind_sums);
  result.weights = KeepsWeights(args) ? behind_sums + rows * kSoftmaxFloats
                                      : worker->weights.Reserve(rows * kWeightStride);
  return result;
}

TileQueries AttentionRunner::PrepareQueries(const AttentionArgs& args, const Tile& tile,
                                            Worker* worker) const {
  const Unit& unit = units_[tile.unit];
  const int head_dim = args.shape.head_dim;
  const int group = Group(args);
  TileQueries queries;
  queries.rows = Rows(args, tile);
  const int64_t size = int64_t{queries.rows} * head_dim;
  float* plain = worker->queries.Reserve(2 * size);
  for (int t = 0; t < tile.num_tokens; ++t) {
    const int64_t row = unit.sequence->first_row + tile.first_token + t;
    const float* q = args.q + (row * args.num_heads + unit.kv_head * group) * head_dim;
    kernels_->scale(plain + int64_t{t} * group * head_dim, q, args.scale * kLog2E,
                    group * head_dim);
  }
  queries.plain = plain;
  if (unit.rotated_keys) {
    float* rotated = plain + size;
    std::copy_n(plain, size, rotated);
    for (int r = 0; r < queries.rows; ++r)
      kernels_->hadamard(rotated + int64_t{r} * head_dim, head_dim);
    queries.rotated = rotated;
  }
  if (unit.centred) {
    const MeanHead& head = mean_.head(unit.kv_head);
    const int64_t row_floats = 2 * static_cast<int64_t>(head.pairs.size());
    float* coefficients = worker->mean.Reserve(2 * queries.rows * row_floats);
    FillMeanCoefficients(head, head_dim, args.positions.pairing, plain, queries.rows, coefficients);
    queries.mean = &head;
    queries.angles = mean_.angles();
    queries.mean_coefficients = coefficients;
    queries.turned_coefficients = coefficients + queries.rows * row_floats;
  }
  return queries;
}

void AttentionRunner::RunItem(const AttentionArgs& args, const Item& item, Worker* worker) {
  const Tile& tile = tiles_[item.tile];
  const TileQueries queries = PrepareQueries(args, tile, worker);
  if (item.part >= 0) {
    float* partials = split_partials_ + tile.partial;
    ComputePart(args, tile, item.part, queries, ResultAt(args, tile, partials, item.part, worker));
    return;
  }
  float* partials =
      worker->partials.Reserve(PartResultSize(args, tile) * (tile.end_part - tile.first_part));
  for (int part = tile.first_part; part < tile.end_part; ++part) {
    ComputePart(args, tile, part, queries, ResultAt(args, tile, partials, part, worker));
  }
  FinishTile(args, tile, partials, worker);
}

void AttentionRunner::ComputePart(const AttentionArgs& args, const Tile& tile, int part,
                                  const TileQueries& queries, const PartResult& result) {
  const int group = Group(args);
  const int begin = part * kAttentionPart;
  ComputeLogits(args, tile, part, queries, result.weights);
  for (int t = 0; t < tile.num_tokens; ++t) {
    const Range visible = Visible(args, units_[tile.unit], tile.first_token + t);
    const int from = std::max(visible.from - begin, 0);
    const int to = std::min(visible.to - begin, kAttentionPart);
    for (int r = t * group; r < (t + 1) * group; ++r) {
      result.softmax[r] =
          from < to ? kernels_->softmax(result.weights + r * kWeightStride + kWeightPad, from, to)
                    : PartSoftmax{-std::numeric_limits<float>::infinity(), 0.0f};
    }
  }
  if (args.out != nullptr) SumValues(args, tile, part, result);
}

// Whole blocks, whatever rows see: lanes that do not exist or are not seen are masked by the
// softmax.
void AttentionRunner::ComputeLogits(const AttentionArgs& args, const Tile& tile, int part,
                                    const TileQueries& queries, float* weights) {
  const Unit& unit = units_[tile.unit];
  const KvList& list = *unit.list;
  const int begin = part * kAttentionPart;
  const int from = std::max(begin, Visible(args, unit, tile.first_token).from);
  const int to = std::min(begin + kAttentionPart,
                          Visible(args, unit, tile.first_token + tile.num_tokens - 1).to);
  KvBlockReader reader(kernels_, &args);
  const PartStart start = part_starts_[unit.first_part_start + part];
  int first_entry = start.first_entry;
  const int end_block = EndBlock(list, start.block, first_entry, to);
  // Where no values are wanted, the keys of the next part are read next.
  const int end_keys = args.out != nullptr ? end_block : list.num_blocks;
  const ReadOrder order(list, end_keys, start.block, false);
  for (int b = start.block; b < end_block; ++b) {
    const int end = first_entry + list.blocks[b].count;
    if (end > from) {
      reader.Logits(list.blocks[b], order.After(b), queries,
                    weights + kWeightPad + (first_entry - begin), kWeightStride);
    }
    first_entry = end;
  }
}

// All rows take the entries that they all see together; what single tokens see before and after
// that is added for each token alone. A row thus never touches a value outside its range, and adds
// its own in order.
void AttentionRunner::SumValues(const AttentionArgs& args, const Tile& tile, int part,
                                const PartResult& result) {
  const Unit& unit = units_[tile.unit];
  const int group = Group(args);
  const int begin = part * kAttentionPart;
  const int end = begin + kAttentionPart;
  const int last_token = tile.first_token + tile.num_tokens - 1;
  Range shared = {std::max(begin, Visible(args, unit, last_token).from),
                  std::min(end, Visible(args, unit, tile.first_token).to)};
  // Nothing shared: the first loop then takes each row's whole range, and the last one finds
  // nothing left.
  if (shared.empty()) shared = {end, end};
  std::fill_n(result.sums, Rows(args, tile) * SumsPerRow(args, tile), 0.0f);
  for (int t = 0; t < tile.num_tokens; ++t) {
    const Range visible = Visible(args, unit, tile.first_token + t);
    SumValuesOfRows(args, unit, part, {t * group, (t + 1) * group},
                    {std::max(begin, visible.from), std::min(shared.from, visible.to)}, result);
  }
  SumValuesOfRows(args, unit, part, {0, Rows(args, tile)}, shared, result);
  for (int t = 0; t < tile.num_tokens; ++t) {
    const Range visible = Visible(args, unit, tile.first_token + t);
    SumValuesOfRows(args, unit, part, {t * group, (t + 1) * group},
                    {std::max(shared.to, visible.from), std::min(end, visible.to)}, result);
  }
}

void AttentionRunner::SumValuesOfRows(const AttentionArgs& args, const Unit& unit, int part,
                                      Range rows, Range entries, const PartResult& result) {
  if (entries.empty()) return;
  const KvList& list = *unit.list;
  const int begin = part * kAttentionPart;
  const int head_dim = args.shape.head_dim;
  KvBlockReader reader(kernels_, &args);
  KvBlockReader::Sums sums;
  sums.rows = rows.to - rows.from;
  sums.weight_stride = kWeightStride;
  sums.plain = result.sums + int64_t{rows.from} * head_dim;
  if (result.rotated_sums != nullptr) {
    sums.rotated = result.rotated_sums + int64_t{rows.from} * head_dim;
  }
  const float* weights = result.weights + rows.from * kWeightStride + kWeightPad - begin;
  const PartStart start = part_starts_[unit.first_part_start + part];
  int first_entry = start.first_entry;
  const int end_block = EndBlock(list, start.block, first_entry, entries.to);
  const ReadOrder order(list, end_block, end_block, true);
  for (int b = start.block; b < end_block; ++b) {
    const int from = std::max(entries.from, first_entry);
    const int to = std::min<int>(entries.to, first_entry + list.blocks[b].count);
    if (from < to) {
      sums.weights = weights + from;
      reader.AddValues(list.blocks[b], order.After(b), from - first_entry, to - from, sums);
    }
    first_entry += list.blocks[b].count;
  }
}

void AttentionRunner::FinishTile(const AttentionArgs& args, const Tile& tile, float* partials,
                                 Worker* worker) {
  const int rows = Rows(args, tile);
  const int head_dim = args.shape.head_dim;
  const int64_t sums_size = rows * SumsPerRow(args, tile);
  PartResult total;
  total.sums = worker->totals.Reserve(sums_size + rows * kSoftmaxFloats);
  total.softmax = reinterpret_cast<PartSoftmax*>(total.sums + sums_size);
  if (units_[tile.unit].rotated_values) total.rotated_sums = total.sums + int64_t{rows} * head_dim;
  std::fill_n(total.sums, sums_size, 0.0f);
  std::fill_n(total.softmax, rows, PartSoftmax{-std::numeric_limits<float>::infinity(), 0.0f});
  for (int part = tile.first_part; part < tile.end_part; ++part) {
    const PartResult result = ResultAt(args, tile, partials, part, worker);
    for (int r = 0; r < rows; ++r) {
      PartSoftmax& into = total.softmax[r];
      const PartSoftmax& from = result.softmax[r];
      if (from.sum == 0.0f) continue;  // the row sees nothing of this part
      const float max = std::max(into.max, from.max);
      const float a = std::exp2(into.max - max);
      const float b = std::exp2(from.max - max);
      CombineSums(args, total, a, result, b, r);
      into = {max, into.sum * a + from.sum * b};
    }
  }
  WriteRows(args, tile, total);
  if (args.evidence != nullptr) WriteEvidence(args, tile, partials, total.softmax, worker);
  if (mass_ != nullptr) WriteMass(args, tile, partials, total.softmax, worker);
}

void AttentionRunner::CombineSums(const AttentionArgs& args, const PartResult& into, float a,
                                  const PartResult& from, float b, int row) const {
  if (args.out == nullptr) return;
  const int64_t at = int64_t{row} * args.shape.head_dim;
  kernels_->combine(into.sums + at, a, from.sums + at, b, args.shape.head_dim);
  if (into.rotated_sums != nullptr) {
    kernels_->combine(into.rotated_sums + at, a, from.rotated_sums + at, b, args.shape.head_dim);
  }
}

void AttentionRunner::WriteRows(const AttentionArgs& args, const Tile& tile,
                                const PartResult& total) {
  const Unit& unit = units_[tile.unit];
  const int group = Group(args);
  const int head_dim = args.shape.head_dim;
  for (int r = 0; r < Rows(args, tile); ++r) {
    const int64_t row = unit.sequence->first_row + tile.first_token + r / group;
    const int64_t index = row * args.num_heads + unit.kv_head * group + r % group;
    const PartSoftmax& softmax = total.softmax[r];
    if (args.out != nullptr) {
      float* sums = total.sums + int64_t{r} * head_dim;
      if (total.rotated_sums != nullptr) {
        float* rotated = total.rotated_sums + int64_t{r} * head_dim;
        kernels_->hadamard(rotated, head_dim);
        kernels_->combine(sums, 1.0f, rotated, 1.0f, head_dim);
      }
      kernels_->scale(args.out + index * head_dim, sums, 1.0f / softmax.sum, head_dim);
    }
    if (args.log_sum_exp != nullptr) {
      args.log_sum_exp[index] =
          static_cast<float>((double{softmax.max} + std::log2(double{softmax.sum})) * kLn2);
    }
  }
}

void AttentionRunner::WriteMass(const AttentionArgs& args, const Tile& tile, float* partials,
                                const PartSoftmax* totals, Worker* worker) const {
  const int64_t entries = units_[tile.unit].list->num_entries;
  for (int part = tile.first_part; part < tile.end_part; ++part) {
    const PartResult result = ResultAt(args, tile, partials, part, worker);
    const int64_t begin = int64_t{part} * kAttentionPart;
    const int n = static_cast<int>(std::min<int64_t>(kAttentionPart, entries - begin));
    for (int r = 0; r < Rows(args, tile); ++r) {
      const int64_t row = tile.first_token * Group(args) + r;
      kernels_->scale(mass_ + row * entries + begin,
                      result.weights + r * kWeightStride + kWeightPad,
                      std::exp2(result.softmax[r].max - totals[r].max) / totals[r].sum, n);
    }
  }
}

void AttentionRunner::WriteEvidence(const AttentionArgs& args, const Tile& tile, float* partials,
                                    const PartSoftmax* totals, Worker* worker) {
  const Unit& unit = units_[tile.unit];
  const int group = Group(args);
  float* largest = worker->evidence.Reserve(kAttentionPart);
  for (int part = tile.first_part; part < tile.end_part; ++part) {
    const PartResult result = ResultAt(args, tile, partials, part, worker);
    const int begin = part * kAttentionPart;
    std::fill_n(largest, kAttentionPart, 0.0f);
    for (int r = 0; r < Rows(args, tile); ++r) {
      const Range visible = Visible(args, unit, tile.first_token + r / group);
      const int from = std::max(visible.from - begin, 0);
      const int to = std::min(visible.to - begin, kAttentionPart);
      if (from >= to) continue;
      const float scale = std::exp2(result.softmax[r].max - totals[r].max) / totals[r].sum;
      kernels_->max_scaled(largest + from, result.weights + r * kWeightStride + kWeightPad + from,
                           scale, to - from);
    }
    const int entries = std::min(kAttentionPart, unit.list->num_entries - begin);
    for (int e = 0; e < entries; ++e) StoreMaximum(unit.evidence + begin + e, largest[e]);
  }
}

}  // namespace condense::cpu
