#ifndef CONDENSE_TOOLS_EVAL_MODEL_DRIVER_H_
#define CONDENSE_TOOLS_EVAL_MODEL_DRIVER_H_

// The evaluation's driver on a model file.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model.h"
#include "tools/eval/eval_driver.h"

namespace condense {

struct ModelDriverOptions {
  std::string model_path;
  BackendOptions backend;
  int32_t step_tokens = 512;
  int32_t block_tokens = 32;
  int64_t max_tokens = 0;    // of one branch
  int32_t max_branches = 2;  // at once; at most step_tokens
};

// Drives the model directly, without the engine's thread, so that all branches step in one batch.
// Compaction is not built: a branch whose compression is active() is refused with UNIMPLEMENTED.
class ModelDriver : public EvalDriver {
 public:
  // INVALID_ARGUMENT if a branch would be longer than what the model was trained for or there are
  // more branches than rows in a step; errors of loading; RESOURCE_EXHAUSTED if the cache for all
  // branches cannot be had, naming its size.
  static absl::StatusOr<std::unique_ptr<ModelDriver>> Make(const ModelDriverOptions& options);
  ~ModelDriver() override;

  // "2 threads, avx512-vnni"
  std::string device() const { return backend_->Info().device; }

  int32_t vocab() const override { return model_->config().vocab; }
  int64_t max_tokens() const override { return options_.max_tokens; }
  int32_t max_branches() const override { return options_.max_branches; }
  absl::Status Prefill(std::span<const TokenId> context) override;
  absl::Status Fork(std::span<const Compression> branches) override;
  absl::Status Settle() override;
  absl::Status Rewind() override;
  absl::Status Step(std::span<const TokenId> tokens, float* logits) override;
  BranchState State(int32_t branch) const override;

 private:
  explicit ModelDriver(const ModelDriverOptions& options) : options_(options) {}

  absl::Status Load();
  // Another branch that holds the context. Computes it again: a copy of the cache would be enough.
  absl::Status ForkContext();
  // Runs what batch_ holds, whose logits for `rows` of it go to `logits`.
  absl::Status Run(float* logits);
  // Adds `tokens` after what `branch` holds to batch_.
  absl::Status Append(KvSequence* branch, std::span<const TokenId> tokens);
  void ClearBatch();
  void ReleaseBranches();

  const ModelDriverOptions options_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> cache_;
  std::vector<TokenId> context_;
  std::vector<std::unique_ptr<KvSequence>> branches_;
  Batch batch_;
};

}  // namespace condense

#endif  // CONDENSE_TOOLS_EVAL_MODEL_DRIVER_H_
