#include "cache/unit_ops.h"

#include <algorithm>
#include <limits>

namespace condense {
namespace {

// One pass of the CPU's attention over a list serves this many rows.
constexpr int32_t kRowsAtOnce = 48;

}  // namespace

int32_t CountEntries(std::span<const KvBlockRef> blocks) {
  int32_t count = 0;
  for (const KvBlockRef& block : blocks) count += block.count;
  return count;
}

int32_t CountEntries(std::span<const KvBuildSource> sources) {
  int32_t count = 0;
  for (const KvBuildSource& source : sources) count += source.block.count;
  return count;
}

UnitOps::UnitOps(Backend* backend, const CompactionModel* model, int32_t layer, int32_t kv_head,
                 CompactionPace* pace)
    : backend_(backend),
      model_(model),
      key_mean_(model->key_mean[layer] == nullptr
                    ? nullptr
                    : model->key_mean[layer] + int64_t{kv_head} * model->shape.head_dim),
      positions_(model->positions[layer]),
      pace_(pace) {}

int32_t UnitOps::queries_at_once() const { return std::max(kRowsAtOnce / model_->group, 1); }

void UnitOps::AwaitPace() {
  if (pace_ != nullptr) pace_->Await();
}

absl::Status UnitOps::Read(std::span<const KvBuildSource> sources, bool with_keys,
                           UnitRange* range) {
  const int32_t n = CountEntries(sources);
  range->positions.resize(n);
  range->biases.resize(n);
  range->counts.resize(n);
  range->keys.resize(with_keys ? int64_t{n} * head_dim() : 0);
  KvReadArgs args;
  args.arena = model_->arena;
  args.shape = model_->shape;
  args.sources = sources.data();
  args.num_sources = static_cast<int32_t>(sources.size());
  args.key_mean = key_mean_;
  args.positions = positions_;
  args.keys = with_keys ? range->keys.data() : nullptr;
  args.positions_out = range->positions.data();
  args.biases = range->biases.data();
  args.counts = range->counts.data();
  AwaitPace();
  return backend_->KvRead(args);
}

absl::Status UnitOps::Build(std::span<const KvBuildSource> sources, const BuildRecipe& recipe) {
  KvBuildArgs args;
  args.arena = model_->arena;
  args.shape = model_->shape;
  args.sources = sources.data();
  args.num_sources = static_cast<int32_t>(sources.size());
  args.members = recipe.members.data();
  args.entries = recipe.entries.data();
  args.num_entries = static_cast<int32_t>(recipe.entries.size());
  args.blocks = recipe.blocks.data();
  args.num_blocks = static_cast<int32_t>(recipe.blocks.size());
  args.key_mean = key_mean_;
  args.positions = positions_;
  AwaitPace();
  return backend_->KvBuild(args);
}

absl::Status UnitOps::Evaluate(std::span<const KvBlockRef> blocks, const float* q,
                               int32_t num_queries, Wanted wanted, QueryFindings* findings) {
  const int32_t n = CountEntries(blocks);
  const int64_t rows = int64_t{num_queries} * group();
  findings->head_dim = head_dim();
  findings->num_entries = n;
  // Emptied first, so that nothing is copied where they grow.
  findings->out.clear();
  findings->mass.clear();
  findings->out.resize(wanted.out ? rows * head_dim() : 0);
  findings->log_sum_exp.resize(rows);
  findings->mass.resize(wanted.mass ? rows * n : 0);
  if (n == 0) {
    std::fill(findings->out.begin(), findings->out.end(), 0.0f);
    std::fill(findings->log_sum_exp.begin(), findings->log_sum_exp.end(),
              -std::numeric_limits<float>::infinity());
    return absl::OkStatus();
  }
  KvEvaluateArgs args;
  args.q = q;
  args.arena = model_->arena;
  args.shape = model_->shape;
  args.num_queries = num_queries;
  args.group = group();
  args.list = {blocks.data(), static_cast<int32_t>(blocks.size()), n};
  args.scale = model_->attention_scale;
  args.key_mean = key_mean_;
  args.positions = positions_;
  args.out = wanted.out ? findings->out.data() : nullptr;
  args.log_sum_exp = findings->log_sum_exp.data();
  args.mass = wanted.mass ? findings->mass.data() : nullptr;
  AwaitPace();
  return backend_->KvEvaluate(args);
}

}  // namespace condense
