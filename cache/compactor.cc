#include "cache/compactor.h"

#include <algorithm>
#include <utility>

#include "cache/notch.h"
#include "cache/policies/registry.h"
#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr int32_t kMaxCoolDown = 64;      // turns
constexpr double kRefusedShare = 0.7;     // what a refusal leaves of a unit's distance_share
constexpr double kUrgentRatio = 1.5;      // beyond the target when memory runs out
constexpr int32_t kMaxRangeBlocks = 256;  // of one job: bounds how long it takes

}  // namespace

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

double SequenceCompaction::hit_ratio() const {
  double sum = 0.0;
  for (const Unit& unit : units_) sum += unit.hit_ratio;
  return units_.empty() ? 1.0 : sum / static_cast<double>(units_.size());
}

double SequenceCompaction::swapped_share() const {
  const KvLayout& layout = compactor_->cache_->layout();
  int32_t units = 0, swapped = 0;
  for (int32_t unit = 0; unit < layout.num_units(); ++unit) {
    if (layout.window_of_unit(unit) > 0) continue;
    ++units;
    swapped += units_[unit].swapped ? 1 : 0;
  }
  return units == 0 ? 0.0 : static_cast<double>(swapped) / units;
}

SequenceCompaction::~SequenceCompaction() { compactor_->Forget(this); }

Compactor::Compactor(KvCache* cache, CompactionMailbox* mailbox, CompactorOptions options)
    : cache_(cache), mailbox_(mailbox), options_(std::move(options)), allotter_(cache, &options_) {
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
                      .held_out_queries = result.held_out_queries,
                      .plan_seconds = result.plan_seconds,
                      .build_seconds = result.build_seconds,
                      .validate_seconds = result.validate_seconds,
                      .cpu_seconds = result.cpu_seconds,
                      .status = result.status});
}

void Compactor::Step(SequenceCompaction* sequence, bool urgent) {
  if (++sequence->steps_ >= options_.swap_every || urgent) {
    sequence->steps_ = 0;
    Turn(sequence, urgent);
  } else if (sequence->has_backlog_ && !paused_ &&
             2 * mailbox_->free_places() >= mailbox_->capacity()) {
    PostJobs(sequence, /*urgent=*/false);
  }
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
    unit.hit_ratio *= result.quality.hit_ratio;
    unit.swapped = true;
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

void Compactor::PostJobs(SequenceCompaction* sequence, bool urgent) {
  sequence->has_backlog_ = false;
  PostDue(sequence, urgent);
  PostEvictions(sequence);
}

void Compactor::PostDue(SequenceCompaction* sequence, bool urgent) {
  const std::vector<CompactionRange> ranges = allotter_.FindRanges(*sequence);
  std::vector<CompactionRange> due;
  for (const CompactionRange& range : ranges) {
    if (CanPost(*sequence, range)) due.push_back(range);
  }
  if (due.empty()) {
    if (urgent) PostFurther(sequence);
    return;
  }
  Compression in_force = AtNotch(sequence->compression_, notches_);
  if (urgent) {
    in_force.ratio =
        std::min(kUrgentRatio * in_force.ratio, kMostRaised * sequence->compression_.ratio);
  }
  const Allotment allotment = allotter_.Allot(*sequence, ranges, in_force);
  std::stable_sort(due.begin(), due.end(), [](const CompactionRange& a, const CompactionRange& b) {
    return a.num > b.num;
  });
  for (const CompactionRange& range : due) {
    const RangeStorage storage = allotter_.ChooseStorage(*sequence, allotment, range);
    if (!Post(sequence, sequence->policy_, storage, range)) return;
    sequence->next_unit_ = (range.unit + 1) % cache_->layout().num_units();
  }
}

bool Compactor::CanPost(const SequenceCompaction& sequence, const CompactionRange& range) const {
  return range.num >= options_.MinBlocks(sequence.compression_) &&
         sequence.units_[range.unit].cool_down == 0 && sequence.kv_->tickets[range.unit] == 0;
}

void Compactor::PostFurther(SequenceCompaction* sequence) {
  for (const CompactionRange& range : allotter_.FindCompacted(*sequence, /*all=*/false)) {
    SequenceCompaction::Unit& unit = sequence->units_[range.unit];
    if (unit.merged_further || !CanPost(*sequence, range)) continue;
    const RangeStorage storage = allotter_.ChooseFurther(*sequence, range, 1.0 / kUrgentRatio);
    if (!Post(sequence, sequence->policy_, storage, range)) return;
    unit.merged_further = true;
  }
}

void Compactor::PostEvictions(SequenceCompaction* sequence) {
  const auto is_full = [this](int32_t unit) {
    return cache_->pool(unit).fill() >= options_.hard_limit;
  };
  bool any = false;
  for (int32_t unit = 0; unit < cache_->layout().num_units(); ++unit) any = any || is_full(unit);
  if (!any) return;
  for (const CompactionRange& range : allotter_.FindCompacted(*sequence, /*all=*/true)) {
    if (!is_full(range.unit) || !CanPost(*sequence, range)) continue;
    const RangeStorage storage =
        allotter_.ChooseFurther(*sequence, range, 1.0 - options_.drop_share);
    if (!Post(sequence, policies_.at("lru").get(), storage, range)) return;
  }
}

bool Compactor::Post(SequenceCompaction* sequence, const Policy* policy,
                     const RangeStorage& storage, const CompactionRange& range) {
  if (mailbox_->free_places() == 0) {
    sequence->has_backlog_ = true;
    return false;
  }
  const auto num_blocks = static_cast<int32_t>(
      std::min<int64_t>(std::min(range.num, kMaxRangeBlocks),
                        cache_->StageableBlocks(storage.format, storage.flags)));
  std::optional<KvStage> stage;
  if (num_blocks >= options_.MinBlocks(sequence->compression_)) {
    stage = cache_->TryStage(sequence->kv_, range.unit, range.first, num_blocks, storage.format,
                             storage.flags, num_blocks);
  }
  if (!stage.has_value()) {
    ++no_reserve_;
    return false;
  }
  const double part = static_cast<double>(num_blocks) / range.num;
  CompactionJob job = MakeJob(sequence, range, num_blocks);
  job.ticket = stage->ticket;
  job.destinations = std::move(stage->blocks);
  job.policy = storage.merges ? policy : policies_.at("none").get();
  // Whether entries have side arrays is decided: the blocks are of one kind.
  const double entry_bytes = EntryBytes(storage.format, cache_->layout().block, storage.flags);
  job.params.formats = {
      {{KvKeyBits(storage.format), KvValueBits(storage.format)}, entry_bytes, entry_bytes}};
  job.params.target_bytes = part * storage.target_bytes;
  job.params.shared_cosine = static_cast<float>(storage.cosine);
  CHECK(mailbox_->TryPost(std::move(job)));
  sequence->units_[range.unit].curve_entries = part * storage.curve_entries;
  out_[stage->ticket] = sequence;
  ++sequence->jobs_out_;
  return true;
}

// All of a job but where its result goes and in which format.
CompactionJob Compactor::MakeJob(SequenceCompaction* sequence, const CompactionRange& range,
                                 int32_t num_blocks) const {
  const Compression& compression = sequence->compression_;
  const int32_t num_kv_heads = cache_->layout().num_kv_heads;
  const BlockTable& table = sequence->kv_->tables[range.unit];
  CompactionJob job{.layer = range.unit / num_kv_heads,
                    .kv_head = range.unit % num_kv_heads,
                    .first_block = range.first,
                    .num_blocks = num_blocks};
  int32_t front_entries = 0;
  for (int32_t i = 0; i < table.num_sealed(); ++i) {
    job.front.push_back({table.blocks()[i], table.first_position(i)});
    front_entries += table.blocks()[i].count;
  }
  job.params = {.max_entries = num_blocks * cache_->layout().block.block_tokens,
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
