#ifndef CONDENSE_TOOLS_EVAL_MODEL_DRIVER_H_
#define CONDENSE_TOOLS_EVAL_MODEL_DRIVER_H_

// The evaluation's driver on a model file.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/compaction_line.h"
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
// Turns wait for the worker: results do not depend on how fast it is.
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

  // A sequence and its compaction, null where nothing is compacted. The compaction goes first.
  struct Cached {
    std::unique_ptr<KvSequence> kv;
    std::unique_ptr<SequenceCompaction> compaction;
  };
  struct Branch {
    Compression compression;
    Cached live;
    Cached settled;      // what Rewind goes back to
    BranchState totals;  // of compactions that are gone; hit_ratio is a sum over `validated`
    int64_t validated = 0;
  };

  absl::Status Load();
  void Release(Cached* cached);
  void ReleaseBranches();
  // A copy with what the original remembers of queries. `from` has no job out.
  absl::StatusOr<Cached> Copy(const Cached& from, const Compression& compression);
  // Adds `tokens` after what `cached` holds to batch_.
  absl::Status Append(const Cached& cached, std::span<const TokenId> tokens);
  void ClearBatch();
  // Runs what batch_ holds, whose logits for `rows` of it go to `logits`.
  absl::Status Run(float* logits);
  void Turn(Branch* branch, int retries);

  const ModelDriverOptions options_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<CompactionLine> compaction_;
  Cached context_;
  std::vector<Branch> branches_;
  Batch batch_;
};

}  // namespace condense

#endif  // CONDENSE_TOOLS_EVAL_MODEL_DRIVER_H_
