#include "tools/eval/model_driver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "tools/format.h"

namespace condense {
namespace {

constexpr int32_t kSwapEvery = 8;     // steps
constexpr int kSettleRetries = 6;     // of units whose swap was refused
constexpr int64_t kStagingShare = 8;  // of the arena

// Compressions differ, the queries that they need do not.
Compression Recording() { return MakeCompression("lossless").value(); }

// Room for `branches` sequences of `tokens` tokens that are filled in steps of up to `step_tokens`.
int64_t ArenaBytes(const KvLayout& layout, int64_t tokens, int64_t branches, int64_t step_tokens) {
  const int64_t block_bytes = KvBlockBytes(KvFormat::kK16V16, layout.block);
  const int64_t block_tokens = layout.block.block_tokens;
  int64_t slabs = 0;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    const int64_t window = layout.window(layer);
    const int64_t held =
        window == 0 ? tokens : std::min(tokens, window + step_tokens + 2 * block_tokens);
    const int64_t blocks = (held + block_tokens - 1) / block_tokens * branches;
    slabs += layout.num_kv_heads * (blocks * block_bytes / layout.slab_bytes() + 1);
  }
  return slabs * layout.slab_bytes();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelDriver>> ModelDriver::Make(const ModelDriverOptions& options) {
  if (options.max_branches > options.step_tokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--branches is %d, must be at most --step_tokens, %d", options.max_branches,
                        options.step_tokens));
  }
  std::unique_ptr<ModelDriver> driver(new ModelDriver(options));
  RETURN_IF_ERROR(driver->Load());
  return driver;
}

absl::Status ModelDriver::Load() {
  ASSIGN_OR_RETURN(backend_, MakeBackend(options_.backend));
  ASSIGN_OR_RETURN(const std::unique_ptr<const GgufFile> file, GgufFile::Open(options_.model_path));
  ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(*file));
  if (options_.max_tokens > config.context_length) {
    return absl::InvalidArgumentError(
        absl::StrFormat("context, scored tokens, questions and answers make up to %d tokens; the "
                        "model was trained for %d",
                        options_.max_tokens, config.context_length));
  }
  ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Make(*file));
  ASSIGN_OR_RETURN(model_, Model::Load(backend_.get(), *file, options_.step_tokens));
  const KvLayout layout = model_->MakeKvLayout(options_.block_tokens);
  // The context, and each branch as it settled and as it goes on.
  const int64_t copies = 2 * int64_t{options_.max_branches} + 1;
  const int64_t branch_bytes =
      ArenaBytes(layout, options_.max_tokens, copies, options_.step_tokens);
  const int64_t arena_bytes = branch_bytes + branch_bytes / kStagingShare;
  auto cache = KvCache::Make(backend_.get(), layout,
                             {.arena_bytes = arena_bytes,
                              .step_tokens = options_.step_tokens,
                              .staging_bytes = branch_bytes / kStagingShare,
                              .pool = {.cap_bytes = 0}});
  if (!cache.ok()) {
    return absl::Status(
        cache.status().code(),
        absl::StrFormat("a cache of %s for %d branches (fewer --branches need less): %s",
                        FormatBytes(arena_bytes), options_.max_branches,
                        std::string(cache.status().message())));
  }
  cache_ = *std::move(cache);
  ASSIGN_OR_RETURN(compaction_, CompactionLine::Make(backend_.get(), model_.get(), cache_.get(),
                                                     *tokenizer_, {}, options_.step_tokens,
                                                     static_cast<int32_t>(options_.max_tokens)));
  return absl::OkStatus();
}

ModelDriver::~ModelDriver() {
  ReleaseBranches();
  Release(&context_);
}

void ModelDriver::Release(Cached* cached) {
  cached->compaction.reset();
  if (cached->kv != nullptr) cache_->Release(cached->kv.get());
  cached->kv.reset();
}

void ModelDriver::ReleaseBranches() {
  for (Branch& branch : branches_) {
    Release(&branch.live);
    Release(&branch.settled);
  }
  branches_.clear();
}

void ModelDriver::ClearBatch() {
  batch_.tokens.clear();
  batch_.positions.clear();
  batch_.sequences.clear();
  batch_.kv.clear();
  batch_.logit_rows.clear();
  batch_.captures.clear();
}

absl::Status ModelDriver::Append(const Cached& cached, std::span<const TokenId> tokens) {
  const auto count = static_cast<int32_t>(tokens.size());
  KvSequence* kv = cached.kv.get();
  const int64_t length = kv->committed_tokens + count;
  if (length > options_.max_tokens || !cache_->TryReserve(kv, count)) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("a branch of %d tokens does not fit: %d at most, %s of %s held", length,
                        options_.max_tokens, FormatBytes(cache_->Stats().used_bytes),
                        FormatBytes(cache_->Stats().arena_bytes)));
  }
  batch_.sequences.push_back(
      {.first_row = static_cast<int32_t>(batch_.tokens.size()), .num_tokens = count});
  batch_.kv.push_back(kv);
  for (int32_t i = 0; i < count; ++i) {
    const auto position = static_cast<int32_t>(kv->committed_tokens) + i;
    if (cached.compaction != nullptr) {
      QueryLog* log = cached.compaction->query_log();
      const int32_t slot = log->SlotFor(position);
      const auto row = static_cast<int32_t>(batch_.tokens.size());
      if (slot >= 0) batch_.captures.push_back({row, log, slot});
    }
    batch_.tokens.push_back(tokens[i]);
    batch_.positions.push_back(position);
  }
  return absl::OkStatus();
}

absl::Status ModelDriver::Run(float* logits) {
  model_->Forward(&batch_, cache_.get());
  const auto rows = static_cast<int32_t>(batch_.logit_rows.size());
  for (int32_t first = 0; first < rows; first += Model::kLogitRows) {
    const int32_t count = std::min(Model::kLogitRows, rows - first);
    const float* device = model_->Logits(batch_, first, count);
    backend_->CopyToHost(reinterpret_cast<std::byte*>(logits + int64_t{first} * vocab()),
                         reinterpret_cast<const std::byte*>(device),
                         int64_t{count} * vocab() * static_cast<int64_t>(sizeof(float)));
    RETURN_IF_ERROR(backend_->Synchronize());
  }
  RETURN_IF_ERROR(backend_->Synchronize());
  for (size_t i = 0; i < batch_.kv.size(); ++i) {
    cache_->Commit(batch_.kv[i], batch_.sequences[i].num_tokens);
  }
  return absl::OkStatus();
}

absl::Status ModelDriver::Prefill(std::span<const TokenId> context) {
  CHECK_GE(context.size(), 1u);
  ReleaseBranches();
  Release(&context_);
  context_.kv = cache_->Open();
  const auto size = static_cast<int64_t>(context.size());
  context_.compaction = compaction_->compactor()->Open(Recording(), context_.kv.get(), size);
  for (int64_t first = 0; first < size; first += options_.step_tokens) {
    const int64_t count = std::min<int64_t>(options_.step_tokens, size - first);
    ClearBatch();
    RETURN_IF_ERROR(Append(context_, context.subspan(first, count)));
    RETURN_IF_ERROR(Run(nullptr));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelDriver::Cached> ModelDriver::Copy(const Cached& from,
                                                      const Compression& compression) {
  Cached copy{cache_->Open(), nullptr};
  if (!cache_->TryCopy(*from.kv, copy.kv.get())) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "a copy of %d tokens does not fit: %s of %s held", from.kv->committed_tokens,
        FormatBytes(cache_->Stats().used_bytes), FormatBytes(cache_->Stats().arena_bytes)));
  }
  copy.compaction =
      compaction_->compactor()->Open(compression, copy.kv.get(), from.kv->committed_tokens);
  if (copy.compaction != nullptr)
    copy.compaction->query_log()->CopyFrom(*from.compaction->query_log());
  return copy;
}

absl::Status ModelDriver::Fork(std::span<const Compression> branches) {
  CHECK_GE(branches.size(), 1u);
  CHECK_LE(static_cast<int64_t>(branches.size()), options_.max_branches);
  ReleaseBranches();
  for (const Compression& compression : branches) {
    branches_.push_back({.compression = compression});
    ASSIGN_OR_RETURN(branches_.back().live, Copy(context_, compression));
  }
  return absl::OkStatus();
}

void ModelDriver::Turn(Branch* branch, int retries) {
  SequenceCompaction* compaction = branch->live.compaction.get();
  if (compaction == nullptr) return;
  Compactor* compactor = compaction_->compactor();
  const int64_t accepted = compaction->swaps_accepted();
  const int64_t refused = compaction->swaps_refused();
  compactor->Settle(compaction, retries);
  branch->totals.swaps_accepted += compaction->swaps_accepted() - accepted;
  branch->totals.swaps_refused += compaction->swaps_refused() - refused;
  for (const SettledJob& job : compactor->TakeSettled()) {
    branch->totals.seconds += job.plan_seconds + job.build_seconds + job.validate_seconds;
    if (job.outcome != SwapOutcome::kAccepted && job.outcome != SwapOutcome::kRefused) continue;
    branch->totals.hit_ratio += job.quality.hit_ratio;
    ++branch->validated;
  }
}

absl::Status ModelDriver::Settle() {
  for (Branch& branch : branches_) {
    branch.totals.hit_ratio = 0.0;
    Turn(&branch, kSettleRetries);
    Release(&branch.settled);
    ASSIGN_OR_RETURN(branch.settled, Copy(branch.live, branch.compression));
  }
  return absl::OkStatus();
}

absl::Status ModelDriver::Rewind() {
  for (Branch& branch : branches_) {
    if (branch.live.kv->committed_tokens == branch.settled.kv->committed_tokens) continue;
    Release(&branch.live);
    ASSIGN_OR_RETURN(branch.live, Copy(branch.settled, branch.compression));
  }
  return absl::OkStatus();
}

absl::Status ModelDriver::Step(std::span<const TokenId> tokens, float* logits) {
  CHECK_EQ(tokens.size(), branches_.size());
  ClearBatch();
  for (size_t i = 0; i < tokens.size(); ++i) {
    RETURN_IF_ERROR(Append(branches_[i].live, tokens.subspan(i, 1)));
    batch_.logit_rows.push_back({.row = static_cast<int32_t>(i)});
  }
  RETURN_IF_ERROR(Run(logits));
  for (Branch& branch : branches_) {
    if (branch.live.kv->committed_tokens % kSwapEvery == 0) Turn(&branch, /*retries=*/0);
  }
  return absl::OkStatus();
}

BranchState ModelDriver::State(int32_t index) const {
  const Branch& branch = branches_[index];
  const KvHolding held = cache_->Held(*branch.live.kv);
  BranchState state = branch.totals;
  state.bytes = held.bytes;
  state.bytes_16bit = held.bytes_16bit;
  state.hit_ratio =
      branch.validated == 0 ? 1.0 : branch.totals.hit_ratio / static_cast<double>(branch.validated);
  return state;
}

}  // namespace condense
