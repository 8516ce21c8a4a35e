#include "cache/compactor.h"

#include <algorithm>
#include <utility>

#include "cache/policies/registry.h"
#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr int32_t kMaxCoolDown = 64;      // turns
constexpr double kRefusedShare = 0.85;    // what a refusal leaves of a unit's ratio
constexpr double kLeastOfNominal = 0.6;   // a range makes up for others no further than this
constexpr double kUrgentRatio = 1.5;      // beyond the target when memory runs out
constexpr int32_t kMaxRangeBlocks = 256;  // of one job: bounds how long it takes

bool IsPlain(const KvBlockRef& block) {
  return block.format == KvFormat::kK16V16 && block.flags == 0;
}

StorageFormat ToStorage(KvFormat format) { return {KvKeyBits(format), KvValueBits(format)}; }

// How the entries of a range will be stored, and by whom they are chosen.
struct Storage {
  KvFormat format = KvFormat::kK16V16;
  KvBlockFlags flags = 0;
  bool merges = false;
};

Storage ChooseStorage(const Compression& compression, const KvBlockShape& shape, bool centred,
                      bool may_merge, int32_t num_entries, double target_bytes) {
  const KvBlockFlags mean = centred ? kKvCentred : 0;
  const int64_t blocks = (num_entries + shape.block_tokens - 1) / shape.block_tokens;
  const auto flags_for = [&](KvFormat format, KvBlockFlags positions) -> KvBlockFlags {
    return positions | (KvKeyBits(format) < 16 ? mean : 0);
  };
  for (const KvFormat format : compression.formats) {
    const KvBlockFlags flags = flags_for(format, kKvRun);
    if (static_cast<double>(blocks * KvBlockBytes(format, shape, flags)) <= target_bytes) {
      return {format, flags, false};
    }
  }
  const KvFormat last = compression.formats.back();
  if (!may_merge) return {last, flags_for(last, kKvRun), false};
  return {last, flags_for(last, kKvBias | kKvPosition | kKvCount), true};
}

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

SequenceCompaction::~SequenceCompaction() { compactor_->Forget(this); }

Compactor::Compactor(KvCache* cache, CompactionMailbox* mailbox, CompactorOptions options)
    : cache_(cache), mailbox_(mailbox), options_(std::move(options)) {
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
  unit.ratio_share *= kRefusedShare;
}

// Blocks that hold 16-bit entries, from the sinks' block on, as far as the window lets them go.
Compactor::Range Compactor::FindRange(const SequenceCompaction& sequence, int32_t unit) const {
  const BlockTable& table = sequence.kv_->tables[unit];
  const int32_t block_tokens = cache_->layout().block.block_tokens;
  Range range{.unit = unit};
  range.first = (options_.num_sinks + block_tokens - 1) / block_tokens;
  const int32_t first_after_sinks = range.first;
  while (range.first < table.num_sealed() && !IsPlain(table.blocks()[range.first])) ++range.first;
  range.plain_front = range.first == first_after_sinks;
  const int64_t end = sequence.kv_->committed_tokens - options_.window_tokens;
  int32_t last = range.first;
  while (last < table.num_sealed() && IsPlain(table.blocks()[last]) &&
         table.first_position(last) + block_tokens <= end) {
    ++last;
  }
  range.num = std::min(last - range.first, kMaxRangeBlocks);
  return range;
}

void Compactor::PostJobs(SequenceCompaction* sequence, bool urgent) {
  const KvLayout& layout = cache_->layout();
  const int32_t num_units = layout.num_units();
  std::vector<Range> ranges;
  for (int32_t i = 0; i < num_units; ++i) {
    const int32_t unit = (sequence->next_unit_ + i) % num_units;
    if (layout.window(unit / layout.num_kv_heads) > 0) continue;
    if (sequence->kv_->tickets[unit] != 0 || sequence->units_[unit].cool_down > 0) continue;
    const Range range = FindRange(*sequence, unit);
    if (range.num >= options_.min_blocks) ranges.push_back(range);
  }
  std::stable_sort(ranges.begin(), ranges.end(),
                   [](const Range& a, const Range& b) { return a.num > b.num; });
  for (const Range& range : ranges) {
    if (!Post(sequence, range, urgent)) return;
    sequence->next_unit_ = (range.unit + 1) % num_units;
  }
}

// What the range may take so that the whole unit keeps to the ratio while its 16-bit tail is of
// middling length: the window, the open block, and half of what waits for a job.
double Compactor::TargetBytes(const SequenceCompaction& sequence, const Range& range,
                              double ratio) const {
  const BlockTable& table = sequence.kv_->tables[range.unit];
  const int32_t block_tokens = cache_->layout().block.block_tokens;
  const auto block_bytes =
      static_cast<double>(KvBlockBytes(KvFormat::kK16V16, cache_->layout().block));
  const auto whole_blocks =
      static_cast<double>((sequence.kv_->committed_tokens + block_tokens - 1) / block_tokens);
  double before = 0.0;
  for (const KvBlockRef& block : table.blocks().first(range.first)) {
    before += static_cast<double>(cache_->BlockBytes(block));
  }
  const auto num_blocks = static_cast<int32_t>(table.blocks().size());
  const int32_t window_blocks = (options_.window_tokens + block_tokens - 1) / block_tokens;
  const int32_t after =
      std::max(num_blocks - range.first - range.num, window_blocks + options_.min_blocks / 2 + 1);
  const double nominal = range.num * block_bytes / ratio;
  return std::max(kLeastOfNominal * nominal,
                  whole_blocks * block_bytes / ratio - before - after * block_bytes);
}

bool Compactor::Post(SequenceCompaction* sequence, Range range, bool urgent) {
  if (mailbox_->free_places() == 0) return false;
  const Compression& compression = sequence->compression_;
  const KvBlockShape& shape = cache_->layout().block;
  const double ratio = std::max(1.0, compression.ratio * sequence->units_[range.unit].ratio_share *
                                         (urgent ? kUrgentRatio : 1.0));
  double target = TargetBytes(*sequence, range, ratio);
  const bool may_merge =
      compression.policy != "none" && sequence->kv_->committed_tokens >= compression.min_tokens;
  const int32_t layer = range.unit / cache_->layout().num_kv_heads;
  const Storage storage =
      ChooseStorage(compression, shape, compression.centred && options_.centred_layers[layer],
                    may_merge, range.num * shape.block_tokens, target);

  const int32_t wanted = range.num;
  range.num = static_cast<int32_t>(
      std::min<int64_t>(wanted, cache_->StageableBlocks(storage.format, storage.flags)));
  std::optional<KvStage> stage;
  if (range.num >= options_.min_blocks) {
    stage = cache_->TryStage(sequence->kv_, range.unit, range.first, range.num, storage.format,
                             storage.flags, range.num);
  }
  if (!stage.has_value()) {
    ++no_reserve_;
    return false;
  }
  target *= static_cast<double>(range.num) / wanted;

  CompactionJob job = MakeJob(sequence, range);
  job.ticket = stage->ticket;
  job.destinations = std::move(stage->blocks);
  job.policy = storage.merges ? sequence->policy_ : policies_.at("none").get();
  const double entry_bytes =
      static_cast<double>(KvBlockBytes(storage.format, shape, storage.flags)) / shape.block_tokens;
  job.params.formats = {{ToStorage(storage.format), entry_bytes, entry_bytes}};
  job.params.target_bytes = target;
  CHECK(mailbox_->TryPost(std::move(job)));
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
      mailbox_->WaitForResult(absl::Seconds(1));
      continue;
    }
    if (++tries > retries) return;
    for (SequenceCompaction::Unit& unit : sequence->units_) unit.cool_down = 0;
  }
}

}  // namespace condense
