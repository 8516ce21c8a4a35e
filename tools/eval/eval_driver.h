#ifndef CONDENSE_TOOLS_EVAL_EVAL_DRIVER_H_
#define CONDENSE_TOOLS_EVAL_EVAL_DRIVER_H_

// What an evaluation asks of a model: one prompt, branches of it under different compression, and
// steps of all branches together.

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "cache/compression.h"
#include "kernels/base/dtype.h"

namespace condense {

// What a branch holds now, and what compaction has done to it since Fork.
struct BranchState {
  int64_t bytes = 0;
  int64_t bytes_16bit = 0;  // of the same tokens in 16 bits; sliding windows count alike in both
  int64_t swaps_accepted = 0;
  int64_t swaps_refused = 0;
  double hit_ratio = 1.0;  // mean over validated swaps; 1 where there were none
  double seconds = 0.0;    // spent on plans, builds and validation
};

// The order of calls is
//   Prefill, Fork, Settle, (Step... Rewind)..., and Fork or Prefill again.
// Threads: thread-compatible. Errors: RESOURCE_EXHAUSTED with the numbers where the cache is too
// small, INTERNAL from the backend; after an error only Prefill may be called.
class EvalDriver {
 public:
  virtual ~EvalDriver() = default;

  virtual int32_t vocab() const = 0;
  // The most tokens of one branch, and the most branches.
  virtual int64_t max_tokens() const = 0;
  virtual int32_t max_branches() const = 0;

  // Ends all branches and computes a new context, in 16 bits.
  // REQUIRES: 1 <= size <= max_tokens(), ids in [0, V).
  virtual absl::Status Prefill(std::span<const TokenId> context) = 0;
  // Ends all branches; then branch i is the context under compression i. Those that are not
  // active() are never compacted.
  // REQUIRES: 1 <= size <= max_branches().
  virtual absl::Status Fork(std::span<const Compression> branches) = 0;
  // Compacts until nothing is left to do and remembers each branch as it is then.
  virtual absl::Status Settle() = 0;
  // Every branch as Settle left it.
  virtual absl::Status Rewind() = 0;
  // Appends tokens[i] to branch i, all in one batch through the decode path, compaction live.
  // `logits`: host [branches, V], what each branch expects next.
  virtual absl::Status Step(std::span<const TokenId> tokens, float* logits) = 0;
  virtual BranchState State(int32_t branch) const = 0;
};

}  // namespace condense

#endif  // CONDENSE_TOOLS_EVAL_EVAL_DRIVER_H_
