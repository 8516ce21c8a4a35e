#include "tools/eval/model_driver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "tools/format.h"

namespace condense {
namespace {

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
  ASSIGN_OR_RETURN(model_, Model::Load(backend_.get(), *file, options_.step_tokens));
  const KvLayout layout = model_->MakeKvLayout(options_.block_tokens);
  const int64_t arena_bytes =
      ArenaBytes(layout, options_.max_tokens, options_.max_branches, options_.step_tokens);
  auto cache = KvCache::Make(backend_.get(), layout,
                             {.arena_bytes = arena_bytes, .step_tokens = options_.step_tokens});
  if (!cache.ok()) {
    return absl::Status(
        cache.status().code(),
        absl::StrFormat("a cache of %s for %d branches (fewer --branches need less): %s",
                        FormatBytes(arena_bytes), options_.max_branches,
                        std::string(cache.status().message())));
  }
  cache_ = *std::move(cache);
  return absl::OkStatus();
}

ModelDriver::~ModelDriver() { ReleaseBranches(); }

void ModelDriver::ReleaseBranches() {
  for (const auto& branch : branches_) cache_->Release(branch.get());
  branches_.clear();
}

void ModelDriver::ClearBatch() {
  batch_.tokens.clear();
  batch_.positions.clear();
  batch_.sequences.clear();
  batch_.kv.clear();
  batch_.logit_rows.clear();
}

absl::Status ModelDriver::Append(KvSequence* branch, std::span<const TokenId> tokens) {
  const auto count = static_cast<int32_t>(tokens.size());
  const int64_t length = branch->committed_tokens + count;
  if (length > options_.max_tokens || !cache_->TryReserve(branch, count)) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("a branch of %d tokens does not fit: %d at most, %s of %s held", length,
                        options_.max_tokens, FormatBytes(cache_->Stats().used_bytes),
                        FormatBytes(cache_->Stats().arena_bytes)));
  }
  batch_.sequences.push_back(
      {.first_row = static_cast<int32_t>(batch_.tokens.size()), .num_tokens = count});
  batch_.kv.push_back(branch);
  for (int32_t i = 0; i < count; ++i) {
    batch_.tokens.push_back(tokens[i]);
    batch_.positions.push_back(static_cast<int32_t>(branch->committed_tokens) + i);
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
  context_.assign(context.begin(), context.end());
  return absl::OkStatus();
}

absl::Status ModelDriver::ForkContext() {
  branches_.push_back(cache_->Open());
  const auto size = static_cast<int64_t>(context_.size());
  for (int64_t first = 0; first < size; first += options_.step_tokens) {
    const int64_t count = std::min<int64_t>(options_.step_tokens, size - first);
    ClearBatch();
    RETURN_IF_ERROR(Append(branches_.back().get(), std::span(context_).subspan(first, count)));
    RETURN_IF_ERROR(Run(nullptr));
  }
  return absl::OkStatus();
}

absl::Status ModelDriver::Fork(std::span<const Compression> branches) {
  CHECK_GE(branches.size(), 1u);
  CHECK_LE(static_cast<int64_t>(branches.size()), options_.max_branches);
  ReleaseBranches();
  for (const Compression& compression : branches) {
    if (compression.active()) {
      return absl::UnimplementedError(absl::StrFormat(
          "compression (preset %s, policy %s, ratio %g): compaction is not built, only \"off\" is",
          compression.preset, compression.policy, compression.ratio));
    }
  }
  for (size_t i = 0; i < branches.size(); ++i) RETURN_IF_ERROR(ForkContext());
  return absl::OkStatus();
}

absl::Status ModelDriver::Settle() { return absl::OkStatus(); }

absl::Status ModelDriver::Rewind() {
  const auto settled = static_cast<int64_t>(context_.size());
  const bool stepped = std::any_of(branches_.begin(), branches_.end(), [&](const auto& branch) {
    return branch->committed_tokens != settled;
  });
  if (!stepped) return absl::OkStatus();
  const size_t count = branches_.size();
  ReleaseBranches();
  for (size_t i = 0; i < count; ++i) RETURN_IF_ERROR(ForkContext());
  return absl::OkStatus();
}

absl::Status ModelDriver::Step(std::span<const TokenId> tokens, float* logits) {
  CHECK_EQ(tokens.size(), branches_.size());
  ClearBatch();
  for (size_t i = 0; i < tokens.size(); ++i) {
    RETURN_IF_ERROR(Append(branches_[i].get(), tokens.subspan(i, 1)));
    batch_.logit_rows.push_back({.row = static_cast<int32_t>(i)});
  }
  return Run(logits);
}

BranchState ModelDriver::State(int32_t branch) const {
  const KvHolding held = cache_->Held(*branches_[branch]);
  return {.bytes = held.bytes, .bytes_16bit = held.bytes_16bit};
}

}  // namespace condense
