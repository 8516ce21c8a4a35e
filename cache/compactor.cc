#include "cache/compactor.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "cache/policies/registry.h"
#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr int32_t kMaxCoolDown = 64;      // turns
constexpr double kRefusedShare = 0.7;     // what a refusal leaves of a unit's distance_share
constexpr double kLeastOfNominal = 0.6;   // a range makes up for others no further than this
constexpr double kUrgentRatio = 1.5;      // beyond the target when memory runs out
constexpr int32_t kMaxRangeBlocks = 256;  // of one job: bounds how long it takes
constexpr double kCurveWeight = 1024.0;   // entries' worth of trust in the curves
// Units that give at least so much attention to what followed the last time find planted facts, and
// merges in them lose those; but no more than this share of the units, or nothing would merge.
constexpr float kRecalls = 0.03f;
constexpr double kMostRecalling = 0.25;
constexpr KvBlockFlags kMerged = kKvBias | kKvPosition | kKvCount;

bool IsPlain(const KvBlockRef& block) {
  return block.format == KvFormat::kK16V16 && block.flags == 0;
}

StorageFormat ToStorage(KvFormat format) { return {KvKeyBits(format), KvValueBits(format)}; }

// Of an entry, as blocks hold it.
FormatCost CostOf(KvFormat format, const KvBlockShape& shape) {
  const auto bytes = [&](KvBlockFlags flags) {
    return static_cast<double>(KvBlockBytes(format, shape, flags)) / shape.block_tokens;
  };
  return {ToStorage(format), bytes(kKvRun), bytes(kMerged)};
}

std::vector<bool> RecallingUnits(const std::vector<float>& recall, int32_t num_units) {
  std::vector<bool> recalls(num_units, false);
  if (recall.empty()) return recalls;
  std::vector<float> descending = recall;
  std::sort(descending.begin(), descending.end(), std::greater<>());
  const auto most = static_cast<size_t>(std::ceil(kMostRecalling * num_units));
  const float least = std::max(kRecalls, descending[std::min(most, descending.size()) - 1]);
  for (int32_t unit = 0; unit < num_units; ++unit) recalls[unit] = recall[unit] >= least;
  return recalls;
}

}  // namespace

// How the entries of one range will be stored, and by whom they are chosen.
struct Compactor::Storage {
  KvFormat format = KvFormat::kK16V16;
  KvBlockFlags flags = 0;
  bool merges = false;
  double entries = 0.0;        // that should be left
  double curve_entries = 0.0;  // the same, by the curves alone
  double cosine = 0.0;         // 0: the policy finds its own way to the target
};

SequenceCompaction::SequenceCompaction(Compactor* compactor, Compression compression,
                                       const Policy* policy, KvSequence* kv, QueryLog query_log,
                                       int32_t phase)
    : compactor_(compactor),
      compression_(std::move(compression)),
      policy_(policy),
      kv_(kv),
      query_log_(std::move(query_log)),
      steps_(phase),
      units_(kv->tables.size()) {}

SequenceCompaction::~SequenceCompaction() { compactor_->Forget(this); }

Compactor::Compactor(KvCache* cache, CompactionMailbox* mailbox, CompactorOptions options)
    : cache_(cache),
      mailbox_(mailbox),
      options_(std::move(options)),
      recalls_(RecallingUnits(options_.recall, cache->layout().num_units())) {
  for (const PolicyInfo& info : RegisteredPolicies()) policies_[info.name] = info.make();
}

Compactor::~Compactor() {
  Collect();
  CHECK_EQ(mailbox_->jobs_out(), 0);
  CHECK(out_.empty());
}

std::unique_ptr<SequenceCompaction> Compactor::Open(const Compression& compression, KvSequence* kv,
                                                    int64_t prompt_tokens) {
  if (!compression.active()) return nullptr;
  const int32_t phase = next_phase_;
  next_phase_ = (next_phase_ + 1) % options_.swap_every;
  return std::unique_ptr<SequenceCompaction>(
      new SequenceCompaction(this, compression, policies_.at(compression.policy).get(), kv,
                             QueryLog(cache_->layout(), options_.group, prompt_tokens), phase));
}

void Compactor::Forget(SequenceCompaction* sequence) {
  for (const CompactionResult& result : sequence->results_) {
    cache_->Unstage(result.ticket);
    Record(result, /*dropped=*/true);
    --num_waiting_results_;
  }
  absl::erase_if(out_, [&](const auto& entry) {
    if (entry.second != sequence) return false;
    // What the worker has begun comes back later and is dropped then.
    if (mailbox_->TryRecall(entry.first)) {
      cache_->Unstage(entry.first);
      settled_.push_back({.dropped = true});
    }
    return true;
  });
}

void Compactor::Collect() {
  while (std::optional<CompactionResult> result = mailbox_->TryCollect()) {
    const auto found = out_.find(result->ticket);
    if (found == out_.end()) {
      // Its sequence has ended; what the job read can go.
      cache_->Unstage(result->ticket);
      Record(*result, /*dropped=*/true);
      continue;
    }
    SequenceCompaction* sequence = found->second;
    out_.erase(found);
    --sequence->jobs_out_;
    ++num_waiting_results_;
    sequence->results_.push_back(*std::move(result));
  }
}

void Compactor::Record(const CompactionResult& result, bool dropped) {
  settled_.push_back({.outcome = result.outcome,
                      .dropped = dropped,
                      .quality = result.quality,
                      .plan_seconds = result.plan_seconds,
                      .build_seconds = result.build_seconds,
                      .validate_seconds = result.validate_seconds,
                      .status = result.status});
}

void Compactor::Step(SequenceCompaction* sequence, bool urgent) {
  if (++sequence->steps_ < options_.swap_every && !urgent) return;
  sequence->steps_ = 0;
  Turn(sequence, urgent);
}

void Compactor::Turn(SequenceCompaction* sequence, bool urgent) {
  SettleResults(sequence);
  for (SequenceCompaction::Unit& unit : sequence->units_) {
    if (unit.cool_down > 0) --unit.cool_down;
  }
  if (!paused_) PostJobs(sequence, urgent);
}

void Compactor::SettleResults(SequenceCompaction* sequence) {
  for (CompactionResult& result : std::exchange(sequence->results_, {})) {
    --num_waiting_results_;
    SettleResult(sequence, std::move(result));
  }
}

void Compactor::SettleResult(SequenceCompaction* sequence, CompactionResult result) {
  Record(result, /*dropped=*/false);
  const auto ticket =
      std::find(sequence->kv_->tickets.begin(), sequence->kv_->tickets.end(), result.ticket);
  CHECK(ticket != sequence->kv_->tickets.end());
  SequenceCompaction::Unit& unit = sequence->units_[ticket - sequence->kv_->tickets.begin()];
  if (unit.curve_entries > 0.0 && result.entries_after > 0) {
    sequence->curve_entries_ += unit.curve_entries;
    sequence->left_entries_ += result.entries_after;
  }
  if (result.outcome == SwapOutcome::kAccepted) {
    cache_->Swap(result.ticket, result.blocks);
    ++sequence->swaps_accepted_;
    sequence->min_hit_ratio_ = std::min(sequence->min_hit_ratio_, result.quality.hit_ratio);
    sequence->max_output_error_ =
        std::max(sequence->max_output_error_, result.quality.output_error);
    unit.next_cool_down = 1;
    return;
  }
  cache_->Unstage(result.ticket);
  unit.cool_down = unit.next_cool_down;
  unit.next_cool_down = std::min(2 * unit.next_cool_down, kMaxCoolDown);
  if (result.outcome != SwapOutcome::kRefused) return;
  ++sequence->swaps_refused_;
  unit.distance_share *= kRefusedShare;
}

// Blocks that hold 16-bit entries, from behind the sinks' block on, as far as the window lets them
// go.
Compactor::Range Compactor::FindRange(const SequenceCompaction& sequence, int32_t unit) const {
  const BlockTable& table = sequence.kv_->tables[unit];
  const int32_t block_tokens = cache_->layout().block.block_tokens;
  const bool protects = sequence.compression_.protects;
  Range range{.unit = unit};
  range.first = (options_.num_sinks + block_tokens - 1) / block_tokens;
  const int32_t first_after_sinks = range.first;
  while (range.first < table.num_sealed() && !IsPlain(table.blocks()[range.first])) ++range.first;
  range.plain_front = range.first == first_after_sinks;
  const int64_t end =
      sequence.kv_->committed_tokens - (protects ? options_.window_tokens : int64_t{0});
  int32_t last = range.first;
  while (last < table.num_sealed() && IsPlain(table.blocks()[last]) &&
         table.first_position(last) + block_tokens <= end) {
    ++last;
  }
  range.num = last - range.first;
  return range;
}

std::vector<Compactor::Range> Compactor::FindRanges(const SequenceCompaction& sequence) const {
  const KvLayout& layout = cache_->layout();
  const int32_t num_units = layout.num_units();
  std::vector<Range> ranges;
  for (int32_t i = 0; i < num_units; ++i) {
    const int32_t unit = (sequence.next_unit_ + i) % num_units;
    if (layout.window(unit / layout.num_kv_heads) > 0) continue;
    ranges.push_back(FindRange(sequence, unit));
  }
  return ranges;
}

void Compactor::PostJobs(SequenceCompaction* sequence, bool urgent) {
  const std::vector<Range> ranges = FindRanges(*sequence);
  std::vector<Range> due;
  for (const Range& range : ranges) {
    if (range.num < options_.min_blocks || sequence->units_[range.unit].cool_down > 0 ||
        sequence->kv_->tickets[range.unit] != 0) {
      continue;
    }
    due.push_back(range);
  }
  if (due.empty()) return;
  const Allotment allotment = Allot(*sequence, ranges, urgent);
  std::stable_sort(due.begin(), due.end(),
                   [](const Range& a, const Range& b) { return a.num > b.num; });
  for (const Range& range : due) {
    if (!Post(sequence, allotment, range)) return;
    sequence->next_unit_ = (range.unit + 1) % cache_->layout().num_units();
  }
}

// What the ranges may take together so that the sequence keeps to the ratio even while its 16-bit
// tails are longest: the window, blocks about to be posted, and the open one.
double Compactor::TargetBytes(const SequenceCompaction& sequence, const std::vector<Range>& ranges,
                              double ratio) const {
  const KvBlockShape& shape = cache_->layout().block;
  const auto block_bytes = static_cast<double>(KvBlockBytes(KvFormat::kK16V16, shape));
  double range_blocks = 0.0, before = 0.0;
  for (const Range& range : ranges) {
    range_blocks += range.num;
    for (const KvBlockRef& block : sequence.kv_->tables[range.unit].blocks().first(range.first)) {
      before += static_cast<double>(cache_->BlockBytes(block));
    }
  }
  const double window = sequence.compression_.protects ? options_.window_tokens : 0.0;
  const double tail_blocks = window / shape.block_tokens + options_.min_blocks + 1.0;
  const double whole_blocks =
      static_cast<double>(sequence.kv_->committed_tokens) / shape.block_tokens;
  const auto num_units = static_cast<double>(ranges.size());
  return block_bytes *
         std::max(kLeastOfNominal * range_blocks / ratio,
                  num_units * (whole_blocks / ratio - tail_blocks) - before / block_bytes);
}

BudgetItem Compactor::Item(const SequenceCompaction& sequence, const Range& range) const {
  const bool keeps_all = recalls_[range.unit] && sequence.policy_->merges_alike();
  return {.unit = range.unit,
          .num_entries = range.num * cache_->layout().block.block_tokens,
          .distance_share = keeps_all ? 0.0 : sequence.units_[range.unit].distance_share};
}

Compactor::Allotment Compactor::Allot(const SequenceCompaction& sequence,
                                      const std::vector<Range>& ranges, bool urgent) const {
  const Compression& compression = sequence.compression_;
  const KvBlockShape& shape = cache_->layout().block;
  const double target =
      TargetBytes(sequence, ranges, compression.ratio * (urgent ? kUrgentRatio : 1.0));
  std::vector<BudgetItem> items;
  double entries = 0.0;
  for (const Range& range : ranges) {
    items.push_back(Item(sequence, range));
    entries += items.back().num_entries;
  }
  const double text_factor =
      (sequence.left_entries_ + kCurveWeight) / (sequence.curve_entries_ + kCurveWeight);
  const auto budget_for = [&](KvFormat format) {
    return Budget(&options_.merge_curves, CostOf(format, shape), text_factor);
  };
  for (const KvFormat format : compression.formats) {
    if (entries * CostOf(format, shape).plain_bytes <= target) {
      return {.format = format, .budget = budget_for(format)};
    }
  }
  const KvFormat last = compression.formats.back();
  Allotment allotment{.format = last, .budget = budget_for(last)};
  allotment.merges =
      compression.policy != "none" && sequence.kv_->committed_tokens >= compression.min_tokens;
  allotment.cosine = allotment.budget.FindCosine(items, target, compression.cosine);
  allotment.share = std::min(1.0, target / (entries * CostOf(last, shape).merged_bytes));
  return allotment;
}

Compactor::Storage Compactor::ChooseStorage(const SequenceCompaction& sequence,
                                            const Allotment& allotment, const Range& range) const {
  const int32_t layer = range.unit / cache_->layout().num_kv_heads;
  const bool centred = sequence.compression_.centred && options_.centred_layers[layer] &&
                       KvKeyBits(allotment.format) < 16;
  const KvBlockFlags mean = centred ? kKvCentred : 0;
  const BudgetItem item = Item(sequence, range);
  const bool alike = sequence.policy_->merges_alike();
  Storage storage{.format = allotment.format};
  storage.merges = allotment.merges && (!alike || allotment.budget.Merges(item, allotment.cosine));
  storage.entries = item.num_entries;
  storage.flags = mean | (storage.merges ? kMerged : kKvRun);
  if (!storage.merges) return storage;
  if (alike) {
    storage.cosine = Budget::UnitCosine(item, allotment.cosine);
    storage.entries = allotment.budget.Entries(item, allotment.cosine);
    storage.curve_entries = allotment.budget.CurveEntries(item, allotment.cosine);
  } else {
    storage.entries *= 1.0 - (1.0 - allotment.share) * item.distance_share;
  }
  return storage;
}

bool Compactor::Post(SequenceCompaction* sequence, const Allotment& allotment, Range range) {
  if (mailbox_->free_places() == 0) return false;
  const Storage storage = ChooseStorage(*sequence, allotment, range);
  const int32_t wanted = range.num;
  range.num = static_cast<int32_t>(std::min<int64_t>(
      std::min(wanted, kMaxRangeBlocks), cache_->StageableBlocks(storage.format, storage.flags)));
  std::optional<KvStage> stage;
  if (range.num >= options_.min_blocks) {
    stage = cache_->TryStage(sequence->kv_, range.unit, range.first, range.num, storage.format,
                             storage.flags, range.num);
  }
  if (!stage.has_value()) {
    ++no_reserve_;
    return false;
  }
  const double part = static_cast<double>(range.num) / wanted;
  CompactionJob job = MakeJob(sequence, range);
  job.ticket = stage->ticket;
  job.destinations = std::move(stage->blocks);
  job.policy = storage.merges ? sequence->policy_ : policies_.at("none").get();
  FormatCost cost = CostOf(storage.format, cache_->layout().block);
  // Which of the two applies is decided: the blocks are there.
  (storage.merges ? cost.plain_bytes : cost.merged_bytes) =
      storage.merges ? cost.merged_bytes : cost.plain_bytes;
  job.params.formats = {cost};
  job.params.target_bytes = part * storage.entries * cost.plain_bytes;
  job.params.shared_cosine = static_cast<float>(storage.cosine);
  CHECK(mailbox_->TryPost(std::move(job)));
  sequence->units_[range.unit].curve_entries = part * storage.curve_entries;
  out_[stage->ticket] = sequence;
  ++sequence->jobs_out_;
  return true;
}

// All of a job but where its result goes and in which format.
CompactionJob Compactor::MakeJob(SequenceCompaction* sequence, const Range& range) const {
  const Compression& compression = sequence->compression_;
  const int32_t num_kv_heads = cache_->layout().num_kv_heads;
  const BlockTable& table = sequence->kv_->tables[range.unit];
  CompactionJob job{.layer = range.unit / num_kv_heads,
                    .kv_head = range.unit % num_kv_heads,
                    .first_block = range.first,
                    .num_blocks = range.num};
  int32_t front_entries = 0;
  for (int32_t i = 0; i < table.num_sealed(); ++i) {
    job.front.push_back({table.blocks()[i], table.first_position(i)});
    front_entries += table.blocks()[i].count;
  }
  job.params = {.max_entries = range.num * cache_->layout().block.block_tokens,
                .min_tokens = compression.min_tokens,
                .seed = static_cast<uint64_t>(range.unit),
                .cluster_window = compression.cluster_window,
                .max_members = compression.max_members,
                .cosine = compression.cosine,
                .balanced_cosine = compression.cosine,
                .fill = cache_->pool(range.unit).fill(),
                .mark_at = options_.mark_at,
                .soft_limit = options_.soft_limit,
                .hard_limit = options_.hard_limit,
                .drop_share = options_.drop_share};
  job.protection = {.num_sinks = options_.num_sinks,
                    .window_tokens = options_.window_tokens,
                    .grace_tokens = options_.grace_tokens,
                    .end_position = static_cast<int32_t>(sequence->kv_->committed_tokens)};
  job.limits = {compression.max_output_error, compression.max_log_mass_error};
  sequence->query_log_.Gather(job.layer, job.kv_head, front_entries,
                              table.first_position(range.first), range.plain_front, &job.evidence,
                              &job.held_out);
  return job;
}

void Compactor::Settle(SequenceCompaction* sequence, int retries) {
  for (int tries = 0; tries <= retries;) {
    Collect();
    SettleResults(sequence);
    PostJobs(sequence, /*urgent=*/false);
    if (sequence->jobs_out_ > 0) {
      // All of them, so that what is posted next does not depend on who was first.
      while (sequence->jobs_out_ > 0) {
        mailbox_->WaitForResult(absl::Seconds(1));
        Collect();
      }
      continue;
    }
    if (++tries > retries) return;
    for (SequenceCompaction::Unit& unit : sequence->units_) unit.cool_down = 0;
  }
}

}  // namespace condense
