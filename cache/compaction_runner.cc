#include "cache/compaction_runner.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "cache/build_recipe.h"
#include "cache/merge_plan.h"
#include "cache/query_evidence.h"
#include "cache/unit_ops.h"
#include "cache/validator.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_cpu_time.h"

namespace condense {
namespace {

template <typename... Args>
absl::Status Broken(const absl::FormatSpec<Args...>& format, const Args&... args) {
  return absl::InternalError("compaction job: " + absl::StrFormat(format, args...));
}

absl::Status CheckSamples(const char* name, const QuerySamples& samples,
                          const CompactionModel& model) {
  const size_t floats = samples.visible.size() * model.group * model.shape.head_dim;
  if (samples.q.size() == floats) return absl::OkStatus();
  return Broken("%d %s queries have %d floats, not %d", samples.size(), name, samples.q.size(),
                floats);
}

absl::Status CheckDestinations(const CompactionJob& job, const CompactionModel& model) {
  if (job.destinations.empty()) return Broken("there are no destinations");
  const KvBlockRef& first = job.destinations.front();
  for (const KvBlockRef& block : job.destinations) {
    if (block.format != first.format || block.flags != first.flags)
      return Broken("destinations of %s, flags %d, and of %s, flags %d", KvFormatName(first.format),
                    first.flags, KvFormatName(block.format), block.flags);
  }
  if ((first.flags & kKvCentred) == 0) return absl::OkStatus();
  if (model.key_mean[job.layer] == nullptr)
    return Broken("centred destinations, but layer %d has no mean keys", job.layer);
  if (!KvKeysRotated(first.format) || (first.flags & (kKvPosition | kKvRun)) == 0)
    return Broken("blocks of %s, flags %d, cannot be centred", KvFormatName(first.format),
                  first.flags);
  return absl::OkStatus();
}

absl::Status CheckJob(const CompactionJob& job, const CompactionModel& model) {
  const auto num_layers = static_cast<int32_t>(model.positions.size());
  if (job.layer < 0 || job.layer >= num_layers || job.kv_head < 0 ||
      job.kv_head >= model.num_kv_heads)
    return Broken("layer %d of %d, head %d of %d", job.layer, num_layers, job.kv_head,
                  model.num_kv_heads);
  const auto num_front = static_cast<int64_t>(job.front.size());
  if (job.first_block < 0 || job.num_blocks < 0 ||
      int64_t{job.first_block} + job.num_blocks > num_front)
    return Broken("blocks [%d, %d + %d) of %d", job.first_block, job.first_block, job.num_blocks,
                  num_front);
  if (job.policy == nullptr) return Broken("there is no policy");
  RETURN_IF_ERROR(CheckSamples("evidence", job.evidence, model));
  RETURN_IF_ERROR(CheckSamples("held-out", job.held_out, model));
  const std::span range = std::span(job.front).subspan(job.first_block, job.num_blocks);
  const int32_t n = CountEntries(range);
  if (!job.marked.empty() && static_cast<int32_t>(job.marked.size()) != n)
    return Broken("%d marks for %d entries", job.marked.size(), n);
  return CheckDestinations(job, model);
}

// What policies and turns rely on; blocks say it, so a broken block would.
absl::Status CheckPositions(std::span<const int32_t> positions, int32_t num_positions) {
  int32_t last = 0;
  for (const int32_t position : positions) {
    if (position < last || position >= num_positions)
      return Broken("position %d after %d, of %d", position, last, num_positions);
    last = position;
  }
  return absl::OkStatus();
}

std::vector<KvBlockRef> BlocksOf(std::span<const KvBuildSource> sources) {
  std::vector<KvBlockRef> blocks;
  blocks.reserve(sources.size());
  for (const KvBuildSource& source : sources) blocks.push_back(source.block);
  return blocks;
}

int64_t BytesOf(std::span<const KvBlockRef> blocks, const KvBlockShape& shape) {
  int64_t bytes = 0;
  for (const KvBlockRef& block : blocks) bytes += KvBlockBytes(block.format, shape, block.flags);
  return bytes;
}

bool ChangesFormatOnly(const MergePlan& plan) {
  return static_cast<int32_t>(plan.groups.size()) == plan.num_entries;
}

std::vector<uint8_t> MarksOfGroups(const MergePlan& plan) {
  if (plan.marks.empty()) return {};
  std::vector<uint8_t> entries(plan.num_entries, 0), groups;
  for (const int32_t entry : plan.marks) entries[entry] = 1;
  groups.reserve(plan.groups.size());
  for (const MergeGroup& group : plan.groups) {
    groups.push_back(entries[plan.members[group.first_member].entry]);
  }
  return groups;
}

class Stopwatch {
 public:
  // Seconds since the last call.
  double Lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// A job while it is carried out. Every step needs the ones before it.
class JobRun {
 public:
  JobRun(const CompactionJob& job, const CompactionModel& model, UnitOps ops, RopeTable* rope,
         CompactionResult* result)
      : job_(job),
        model_(model),
        ops_(ops),
        rope_(rope),
        result_(result),
        front_(BlocksOf(job.front)),
        sources_(std::span(job.front).subspan(job.first_block, job.num_blocks)) {}

  absl::Status Run() {
    result_->entries_before = CountEntries(sources_);
    result_->outcome = SwapOutcome::kUseless;
    if (result_->entries_before == 0) return absl::OkStatus();
    RETURN_IF_ERROR(Read());
    result_->read_seconds = stopwatch_.Lap();
    RETURN_IF_ERROR(Observe());
    result_->evidence_seconds = stopwatch_.Lap();
    RETURN_IF_ERROR(Plan());
    result_->plan_seconds = stopwatch_.Lap();
    if (!SavesBytes()) return absl::OkStatus();
    result_->outcome = SwapOutcome::kRefused;
    if (job_.held_out.size() == 0 && !ChangesFormatOnly(plan_)) return absl::OkStatus();
    if (!recipe_.entries.empty()) RETURN_IF_ERROR(ops_.Build(sources_, recipe_));
    result_->build_seconds = stopwatch_.Lap();
    RETURN_IF_ERROR(Validate());
    result_->validate_seconds = stopwatch_.Lap();
    if (!WithinLimits(result_->quality, job_.limits)) return absl::OkStatus();
    result_->outcome = SwapOutcome::kAccepted;
    result_->blocks = std::move(recipe_.blocks);
    return absl::OkStatus();
  }

 private:
  absl::Status Read() {
    RETURN_IF_ERROR(ops_.Read(sources_, job_.policy->needs_keys(), &range_));
    return CheckPositions(range_.positions, model_.positions[job_.layer].num_positions);
  }

  absl::Status Observe() {
    EntryStats stats;
    stats.AppendMany(result_->entries_before);
    if (job_.policy->needs_evidence()) {
      const int32_t first = CountEntries(std::span(front_).first(job_.first_block));
      RETURN_IF_ERROR(ObserveQueries(front_, first, job_.evidence, &ops_, &stats));
    }
    evidence_ = stats.Freeze(0, stats.size());
    if (job_.marked.empty()) return absl::OkStatus();
    // Queries of the past may be older than the marks; only the others can lift them.
    const int32_t recent = CountWhole(job_.evidence, CountEntries(front_));
    for (int32_t i = 0; i < evidence_.size(); ++i) {
      evidence_.marked[i] = job_.marked[i] != 0 && evidence_.idle_steps[i] >= recent;
    }
    return absl::OkStatus();
  }

  absl::Status Plan() {
    ops_.AwaitPace();
    if (!range_.keys.empty()) {
      rope_->Extend(range_.positions.back());
      rope_->ToOrigin(range_.positions, range_.keys.data());
    }
    const UnitView view = {.entries = {.positions = range_.positions,
                                       .biases = range_.biases,
                                       .counts = range_.counts,
                                       .protection = job_.protection},
                           .evidence = &evidence_,
                           .keys = range_.keys,
                           .head_dim = model_.shape.head_dim};
    PolicyParams params = job_.params;
    const int64_t room = static_cast<int64_t>(job_.destinations.size()) * model_.shape.block_tokens;
    params.max_entries = static_cast<int32_t>(std::min<int64_t>(params.max_entries, room));
    plan_ = job_.policy->Plan(view, params);
    RETURN_IF_ERROR(ValidatePlan(plan_, view.entries, params.max_entries));
    const KvFormat format = job_.destinations.front().format;
    if (MakeKvFormat(plan_.format.key_bits, plan_.format.value_bits) != format)
      return Broken("the plan is for k%dv%d, the destinations are %s", plan_.format.key_bits,
                    plan_.format.value_bits, KvFormatName(format));
    ASSIGN_OR_RETURN(recipe_, MakeBuildRecipe(plan_, job_.destinations, model_.shape.block_tokens));
    result_->entries_after = static_cast<int32_t>(plan_.groups.size());
    result_->shortfall = plan_.shortfall;
    const bool merges = plan_.members.size() > plan_.groups.size();
    result_->cosine = merges ? plan_.cosine : 0.0f;
    result_->marked = MarksOfGroups(plan_);
    return absl::OkStatus();
  }

  bool SavesBytes() const {
    return BytesOf(recipe_.blocks, model_.shape) < BytesOf(BlocksOf(sources_), model_.shape);
  }

  // Front and back differ in the range alone: what lies around it is asked once, for both.
  absl::Status Validate() {
    const std::vector<KvBlockRef> range = BlocksOf(sources_);
    std::vector<KvBlockRef> rest = front_;
    const auto first = rest.begin() + job_.first_block;
    rest.erase(first, first + job_.num_blocks);
    const bool has_rest = CountEntries(rest) > 0;
    if (!has_rest && plan_.groups.empty()) {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      result_->quality = {kInfinity, kInfinity, 0.0};
      return absl::OkStatus();
    }
    Validator validator(MakeSwapMap(plan_, 0, plan_.num_entries + (has_rest ? 1 : 0)));
    const QuerySamples& queries = job_.held_out;
    const int32_t at_once = ops_.queries_at_once();
    QueryFindings before, after, around;
    for (int32_t i = 0; i < queries.size(); i += at_once) {
      const int32_t num = std::min(at_once, queries.size() - i);
      const float* q = queries.q.data() + int64_t{i} * ops_.group() * ops_.head_dim();
      RETURN_IF_ERROR(ops_.Evaluate(range, q, num, UnitOps::kOutAndMasses, &before));
      RETURN_IF_ERROR(ops_.Evaluate(recipe_.blocks, q, num, UnitOps::kOutAndMasses, &after));
      if (has_rest) {
        RETURN_IF_ERROR(ops_.Evaluate(rest, q, num, UnitOps::kOut, &around));
        AddAsOneEntry(around, &before);
        AddAsOneEntry(around, &after);
      }
      validator.Add(before, after);
    }
    result_->held_out_queries = queries.size();
    result_->quality = validator.Quality();
    return absl::OkStatus();
  }

  const CompactionJob& job_;
  const CompactionModel& model_;
  UnitOps ops_;
  RopeTable* const rope_;
  CompactionResult* const result_;
  const std::vector<KvBlockRef> front_;
  const std::span<const KvBuildSource> sources_;  // the range
  Stopwatch stopwatch_;
  UnitRange range_;
  UnitEvidence evidence_;
  MergePlan plan_;
  BuildRecipe recipe_;
};

}  // namespace

CompactionRunner::CompactionRunner(Backend* backend, CompactionModel model, CompactionPace* pace)
    : backend_(backend), model_(std::move(model)), pace_(pace) {
  CHECK(model_.group > 0 && model_.num_kv_heads > 0);
  CHECK_EQ(model_.key_mean.size(), model_.positions.size());
  CHECK_EQ(model_.frequencies.size(), model_.positions.size());
  for (const RopeFrequencies& frequencies : model_.frequencies) {
    CHECK_EQ(frequencies.head_dim(), model_.shape.head_dim);
  }
}

CompactionResult CompactionRunner::Run(const CompactionJob& job) {
  const std::chrono::nanoseconds begin = ThreadCpuTime();
  CompactionResult result;
  result.ticket = job.ticket;
  result.status = CheckJob(job, model_);
  if (result.status.ok()) {
    const UnitOps ops(backend_, &model_, job.layer, job.kv_head, pace_);
    result.status = JobRun(job, model_, ops, RopeOf(job.layer), &result).Run();
  }
  if (!result.status.ok()) {
    result.outcome = SwapOutcome::kFailed;
    result.marked.clear();
  }
  result.cpu_seconds = std::chrono::duration<double>(ThreadCpuTime() - begin).count();
  return result;
}

RopeTable* CompactionRunner::RopeOf(int32_t layer) {
  const RopeFrequencies& frequencies = model_.frequencies[layer];
  for (RopeTable& rope : ropes_) {
    if (rope.frequencies().pairing == frequencies.pairing &&
        rope.frequencies().radians == frequencies.radians) {
      return &rope;
    }
  }
  return &ropes_.emplace_back(frequencies);
}

}  // namespace condense
