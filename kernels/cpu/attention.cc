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

struct BlockData {
  const Half* keys;
  const Half* values;
};
BlockData BlockAt(const AttentionArgs& args, const KvBlockRef& block) {
  const std::byte* data = args.arena + static_cast<int64_t>(block.offset_64) * 64;
  return {reinterpret_cast<const Half*>(data),
          reinterpret_cast<const Half*>(data + KvValuesOffset(block.format, args.shape))};
}

// The block after `block`, or `block` itself at the end of the list.
BlockData NextBlock(const AttentionArgs& args, const KvList& list, int block) {
  return BlockAt(args, list.blocks[std::min(block + 1, list.num_blocks - 1)]);
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
    : kernels_(kernels), pool_(pool), workers_(pool->num_threads()) {}

int AttentionRunner::Rows(const AttentionArgs& args, const Tile& tile) const {
  return tile.num_tokens * Group(args);
}

AttentionRunner::Range AttentionRunner::Visible(const AttentionArgs& args, const Unit& unit,
                                                int token) const {
  const int to = unit.list->num_entries - (unit.sequence->num_tokens - 1 - token);
  return {args.window > 0 ? std::max(0, to - args.window) : 0, to};
}

void AttentionRunner::Run(const AttentionArgs& args) {
  CHECK_EQ(args.num_heads % args.num_kv_heads, 0);
  CHECK_LE(args.shape.block_tokens, kMaxBlockTokens);
  Plan(args);
  split_partials_ = partials_.Reserve(partials_size_);
  pool_->Run(static_cast<int>(items_.size()),
             [&](int item, int worker) { RunItem(args, items_[item], &workers_[worker]); });
  pool_->Run(static_cast<int>(split_tiles_.size()), [&](int index, int worker) {
    const Tile& tile = tiles_[split_tiles_[index]];
    FinishTile(args, tile, split_partials_ + tile.partial, &workers_[worker]);
  });
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
    const int end = first_entry + unit.list->blocks[b].count;
    for (; next_part < end; next_part += kAttentionPart) part_starts_.push_back({b, first_entry});
    first_entry = end;
  }
  CHECK_EQ(first_entry, unit.list->num_entries);
  CHECK_LE(unit.sequence->num_tokens, unit.list->num_entries);
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

int64_t AttentionRunner::PartResultSize(const AttentionArgs& args, const Tile& tile) const {
  // Evidence needs the weights of every part until the totals are known.
  return Rows(args, tile) *
         (args.shape.head_dim + kSoftmaxFloats + (args.evidence != nullptr ? kWeightStride : 0));
}

AttentionRunner::PartResult AttentionRunner::ResultAt(const AttentionArgs& args, const Tile& tile,
                                                      float* partials, int part,
                                                      Worker* worker) const {
  const int rows = Rows(args, tile);
  float* at = partials + (part - tile.first_part) * PartResultSize(args, tile);
  PartResult result;
  result.sums = at;
  result.softmax = reinterpret_cast<PartSoftmax*>(at + int64_t{rows} * args.shape.head_dim);
  result.weights = args.evidence != nullptr ? at + rows * (args.shape.head_dim + kSoftmaxFloats)
                                            : worker->weights.Reserve(rows * kWeightStride);
  return result;
}

void AttentionRunner::RunItem(const AttentionArgs& args, const Item& item, Worker* worker) {
  const Tile& tile = tiles_[item.tile];
  const Unit& unit = units_[tile.unit];
  const int head_dim = args.shape.head_dim;
  const int group = Group(args);
  float* queries = worker->queries.Reserve(int64_t{Rows(args, tile)} * head_dim);
  for (int t = 0; t < tile.num_tokens; ++t) {
    const int64_t row = unit.sequence->first_row + tile.first_token + t;
    const float* q = args.q + (row * args.num_heads + unit.kv_head * group) * head_dim;
    kernels_->scale(queries + int64_t{t} * group * head_dim, q, args.scale * kLog2E,
                    group * head_dim);
  }
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
                                  const float* queries, const PartResult& result) {
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
  SumValues(args, tile, part, result);
}

// Whole blocks, whatever rows see: lanes that do not exist or are not seen are masked by the
// softmax.
void AttentionRunner::ComputeLogits(const AttentionArgs& args, const Tile& tile, int part,
                                    const float* queries, float* weights) {
  const Unit& unit = units_[tile.unit];
  const KvList& list = *unit.list;
  const int begin = part * kAttentionPart;
  const int from = std::max(begin, Visible(args, unit, tile.first_token).from);
  const int to = std::min(begin + kAttentionPart,
                          Visible(args, unit, tile.first_token + tile.num_tokens - 1).to);
  QueryKeyArgs call;
  call.q = queries;
  call.rows = Rows(args, tile);
  call.head_dim = args.shape.head_dim;
  call.block_tokens = args.shape.block_tokens;
  call.logit_stride = kWeightStride;
  const PartStart start = part_starts_[unit.first_part_start + part];
  int first_entry = start.first_entry;
  for (int b = start.block; b < list.num_blocks && first_entry < to; ++b) {
    const int end = first_entry + list.blocks[b].count;
    if (end > from) {
      call.keys = BlockAt(args, list.blocks[b]).keys;
      call.next_keys = NextBlock(args, list, b).keys;
      call.logits = weights + kWeightPad + (first_entry - begin);
      kernels_->query_key(call);
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
  std::fill_n(result.sums, int64_t{Rows(args, tile)} * args.shape.head_dim, 0.0f);
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
  WeightValueArgs call;
  call.rows = rows.to - rows.from;
  call.head_dim = head_dim;
  call.weight_stride = kWeightStride;
  call.sums = result.sums + int64_t{rows.from} * head_dim;
  const float* weights = result.weights + rows.from * kWeightStride + kWeightPad - begin;
  const PartStart start = part_starts_[unit.first_part_start + part];
  int first_entry = start.first_entry;
  for (int b = start.block; b < list.num_blocks && first_entry < entries.to; ++b) {
    const int from = std::max(entries.from, first_entry);
    const int to = std::min<int>(entries.to, first_entry + list.blocks[b].count);
    if (from < to) {
      const int64_t skipped = int64_t{from - first_entry} * head_dim;
      call.values = BlockAt(args, list.blocks[b]).values + skipped;
      call.next_values = NextBlock(args, list, b).values + skipped;
      call.weights = weights + from;
      call.entries = to - from;
      kernels_->weight_value(call);
    }
    first_entry += list.blocks[b].count;
  }
}

void AttentionRunner::FinishTile(const AttentionArgs& args, const Tile& tile, float* partials,
                                 Worker* worker) {
  const int rows = Rows(args, tile);
  const int head_dim = args.shape.head_dim;
  PartResult total;
  total.sums = worker->totals.Reserve(rows * (head_dim + kSoftmaxFloats));
  total.softmax = reinterpret_cast<PartSoftmax*>(total.sums + int64_t{rows} * head_dim);
  std::fill_n(total.sums, int64_t{rows} * head_dim, 0.0f);
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
      kernels_->combine(total.sums + int64_t{r} * head_dim, a, result.sums + int64_t{r} * head_dim,
                        b, head_dim);
      into = {max, into.sum * a + from.sum * b};
    }
  }
  WriteRows(args, tile, total);
  if (args.evidence != nullptr) WriteEvidence(args, tile, partials, total.softmax, worker);
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
    kernels_->scale(args.out + index * head_dim, total.sums + int64_t{r} * head_dim,
                    1.0f / softmax.sum, head_dim);
    if (args.log_sum_exp != nullptr) {
      args.log_sum_exp[index] =
          static_cast<float>((double{softmax.max} + std::log2(double{softmax.sum})) * kLn2);
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
