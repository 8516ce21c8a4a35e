#include "cache/allotter.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace condense {
namespace {

constexpr double kLeastOfNominal = 0.6;  // a range makes up for others no further than this
constexpr double kCurveWeight = 1024.0;  // entries' worth of trust in the curves
// Units that give at least so much attention to what followed the last time find planted facts, and
// merges in them lose those; but no more than this share of the units, or nothing would merge.
constexpr float kRecalls = 0.03f;
constexpr double kMostRecalling = 0.25;
constexpr KvBlockFlags kMerged = kKvBias | kKvPosition | kKvCount;

bool IsPlain(const KvBlockRef& block) {
  return block.format == KvFormat::kK16V16 && block.flags == 0;
}

FormatCost CostOf(KvFormat format, const KvBlockShape& shape) {
  return {.format = {KvKeyBits(format), KvValueBits(format)},
          .plain_bytes = EntryBytes(format, shape, kKvRun),
          .merged_bytes = EntryBytes(format, shape, kMerged)};
}

// Of units that find facts again: keys that tell entries apart.
KvFormat RecallFormat(KvFormat format) { return KvKeyBits(format) < 6 ? KvFormat::kK6V4 : format; }

std::vector<bool> RecallingUnits(const std::vector<float>& recall, const KvLayout& layout) {
  std::vector<bool> recalls(layout.num_units(), false);
  std::vector<float> descending;  // of units that are compacted at all
  for (int32_t unit = 0; !recall.empty() && unit < layout.num_units(); ++unit) {
    if (layout.window_of_unit(unit) == 0) descending.push_back(recall[unit]);
  }
  if (descending.empty()) return recalls;
  std::sort(descending.begin(), descending.end(), std::greater<>());
  const double most = std::ceil(kMostRecalling * static_cast<double>(descending.size()));
  const float least = std::max(kRecalls, descending[static_cast<size_t>(most) - 1]);
  for (int32_t unit = 0; unit < layout.num_units(); ++unit) recalls[unit] = recall[unit] >= least;
  return recalls;
}

}  // namespace

double EntryBytes(KvFormat format, const KvBlockShape& shape, KvBlockFlags flags) {
  return static_cast<double>(KvBlockBytes(format, shape, flags)) / shape.block_tokens;
}

Allotter::Allotter(const KvCache* cache, const CompactorOptions* options)
    : cache_(cache),
      options_(options),
      first_block_((options->num_sinks + cache->layout().block.block_tokens - 1) /
                   cache->layout().block.block_tokens),
      recalls_(RecallingUnits(options->recall, cache->layout())) {}

// Blocks that hold 16-bit entries, from behind the sinks' block on, as far as the window lets them
// go; all of them where no window is kept.
CompactionRange Allotter::FindRange(const SequenceCompaction& sequence, int32_t unit) const {
  const BlockTable& table = sequence.kv_->tables[unit];
  const int32_t block_tokens = cache_->layout().block.block_tokens;
  const bool keeps_window = sequence.compression_.keeps_window;
  const int32_t first_block = keeps_window ? first_block_ : 0;
  CompactionRange range{.unit = unit, .first = first_block};
  while (range.first < table.num_sealed() && !IsPlain(table.blocks()[range.first])) ++range.first;
  range.plain_front = range.first == first_block;
  const int64_t end =
      sequence.kv_->committed_tokens - (keeps_window ? options_->window_tokens : int64_t{0});
  int32_t last = range.first;
  while (last < table.num_sealed() && IsPlain(table.blocks()[last]) &&
         table.first_position(last) + block_tokens <= end) {
    ++last;
  }
  range.num = last - range.first;
  return range;
}

std::vector<CompactionRange> Allotter::FindRanges(const SequenceCompaction& sequence) const {
  const KvLayout& layout = cache_->layout();
  const int32_t num_units = layout.num_units();
  std::vector<CompactionRange> ranges;
  for (int32_t i = 0; i < num_units; ++i) {
    const int32_t unit = (sequence.next_unit_ + i) % num_units;
    if (layout.window_of_unit(unit) > 0) continue;
    ranges.push_back(FindRange(sequence, unit));
  }
  return ranges;
}

std::vector<CompactionRange> Allotter::FindCompacted(const SequenceCompaction& sequence,
                                                     bool all) const {
  const KvLayout& layout = cache_->layout();
  std::vector<CompactionRange> ranges;
  if (!MayMerge(sequence)) return ranges;
  for (int32_t unit = 0; unit < layout.num_units(); ++unit) {
    if (layout.window_of_unit(unit) > 0 || (recalls_[unit] && !all)) continue;
    const BlockTable& table = sequence.kv_->tables[unit];
    // The longest run of one format: notches change it while a sequence runs.
    CompactionRange longest{.unit = unit, .first = first_block_, .plain_front = false};
    CompactionRange run = longest;
    const auto is_alike = [&](const KvBlockRef& block) {
      return !IsPlain(block) && block.format == table.blocks()[run.first].format;
    };
    while (run.first + run.num < table.num_sealed()) {
      if (is_alike(table.blocks()[run.first + run.num])) {
        ++run.num;
        if (run.num > longest.num) longest = run;
      } else {
        run.first += std::max(run.num, 1);
        run.num = 0;
      }
    }
    ranges.push_back(longest);
  }
  return ranges;
}

RangeStorage Allotter::ChooseFurther(const SequenceCompaction& sequence,
                                     const CompactionRange& range, double share) const {
  const auto blocks = sequence.kv_->tables[range.unit].blocks().subspan(range.first, range.num);
  double bytes = 0.0;
  for (const KvBlockRef& block : blocks) bytes += static_cast<double>(cache_->BlockBytes(block));
  return {.format = blocks.front().format,
          .flags = static_cast<KvBlockFlags>(kMerged | (blocks.front().flags & kKvCentred)),
          .merges = true,
          .target_bytes = std::max(1.0, share * bytes)};  // 0 would be no target
}

bool Allotter::MayMerge(const SequenceCompaction& sequence) const {
  const Compression& compression = sequence.compression_;
  return compression.policy != "none" && sequence.kv_->committed_tokens >= compression.min_tokens;
}

// What the ranges may take together so that the sequence keeps to the ratio even while its 16-bit
// tails are longest: the window, blocks about to be posted, and the open one.
double Allotter::TargetBytes(const SequenceCompaction& sequence,
                             const std::vector<CompactionRange>& ranges, double ratio) const {
  const KvBlockShape& shape = cache_->layout().block;
  const auto block_bytes = static_cast<double>(KvBlockBytes(KvFormat::kK16V16, shape));
  double range_blocks = 0.0, before = 0.0;
  for (const CompactionRange& range : ranges) {
    range_blocks += range.num;
    for (const KvBlockRef& block : sequence.kv_->tables[range.unit].blocks().first(range.first)) {
      before += static_cast<double>(cache_->BlockBytes(block));
    }
  }
  const double window = sequence.compression_.keeps_window ? options_->window_tokens : 0.0;
  const double tail_blocks =
      window / shape.block_tokens + options_->MinBlocks(sequence.compression_) + 1.0;
  const double whole_blocks =
      static_cast<double>(sequence.kv_->committed_tokens) / shape.block_tokens;
  const auto num_units = static_cast<double>(ranges.size());
  return block_bytes *
         std::max(kLeastOfNominal * range_blocks / ratio,
                  num_units * (whole_blocks / ratio - tail_blocks) - before / block_bytes);
}

bool Allotter::KeepsAll(const SequenceCompaction& sequence, int32_t unit) const {
  return recalls_[unit] && sequence.policy_->merges_alike();
}

BudgetItem Allotter::Item(const SequenceCompaction& sequence, const CompactionRange& range) const {
  return {.unit = range.unit,
          .num_entries = range.num * cache_->layout().block.block_tokens,
          .distance_share = sequence.units_[range.unit].distance_share};
}

Allotment Allotter::Allot(const SequenceCompaction& sequence,
                          const std::vector<CompactionRange>& ranges,
                          const Compression& in_force) const {
  const KvBlockShape& shape = cache_->layout().block;
  const double target = TargetBytes(sequence, ranges, in_force.ratio);
  std::vector<BudgetItem> items;
  double entries = 0.0, kept_entries = 0.0;  // of `items`, and of units that keep all
  for (const CompactionRange& range : ranges) {
    const BudgetItem item = Item(sequence, range);
    const bool keeps_all = KeepsAll(sequence, range.unit);
    (keeps_all ? kept_entries : entries) += item.num_entries;
    if (!keeps_all) items.push_back(item);
  }
  const double text_factor =
      (sequence.left_entries_ + kCurveWeight) / (sequence.curve_entries_ + kCurveWeight);
  const auto budget_for = [&](KvFormat format) {
    return Budget(&options_->merge_curves, CostOf(format, shape), text_factor);
  };
  const auto kept_bytes = [&](KvFormat format) {
    return kept_entries * CostOf(RecallFormat(format), shape).plain_bytes;
  };
  for (const KvFormat format : in_force.formats) {
    if (entries * CostOf(format, shape).plain_bytes + kept_bytes(format) <= target) {
      return {.format = format, .budget = budget_for(format)};
    }
  }
  const KvFormat last = in_force.formats.back();
  const double rest = target - kept_bytes(last);
  Allotment allotment{.format = last, .budget = budget_for(last)};
  allotment.merges = MayMerge(sequence);
  allotment.cosine = allotment.budget.FindCosine(items, rest, in_force.cosine);
  allotment.share =
      std::clamp(rest / (std::max(entries, 1.0) * CostOf(last, shape).merged_bytes), 0.0, 1.0);
  return allotment;
}

RangeStorage Allotter::ChooseStorage(const SequenceCompaction& sequence, const Allotment& allotment,
                                     const CompactionRange& range) const {
  const KvLayout& layout = cache_->layout();
  const bool keeps_all = KeepsAll(sequence, range.unit);
  const bool alike = sequence.policy_->merges_alike();
  const BudgetItem item = Item(sequence, range);
  RangeStorage storage{.format = keeps_all ? RecallFormat(allotment.format) : allotment.format};
  storage.merges =
      allotment.merges && !keeps_all && (!alike || allotment.budget.Merges(item, allotment.cosine));
  // Wider keys gain nothing from it.
  const bool centred = sequence.compression_.centred && KvKeyBits(storage.format) <= 4 &&
                       options_->centred_layers[range.unit / layout.num_kv_heads];
  storage.flags = (centred ? kKvCentred : 0) | (storage.merges ? kMerged : kKvRun);
  double entries = item.num_entries;
  if (storage.merges && alike) {
    storage.cosine = Budget::UnitCosine(item, allotment.cosine);
    entries = allotment.budget.Entries(item, allotment.cosine);
    storage.curve_entries = allotment.budget.CurveEntries(item, allotment.cosine);
  } else if (storage.merges) {
    entries *= 1.0 - (1.0 - allotment.share) * item.distance_share;
  }
  storage.target_bytes = entries * EntryBytes(storage.format, layout.block, storage.flags);
  return storage;
}

}  // namespace condense
