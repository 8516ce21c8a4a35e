#ifndef CONDENSE_TOOLS_EVAL_EVAL_RUN_H_
#define CONDENSE_TOOLS_EVAL_EVAL_RUN_H_

// The evaluation itself: documents scored and questions asked, every cell beside the full cache.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/tokenizer.h"
#include "tools/eval/eval_cells.h"
#include "tools/eval/eval_driver.h"
#include "tools/eval/eval_result.h"
#include "tools/eval/recall_task.h"

namespace condense {

struct EvalTask {
  std::vector<EvalCell> cells;
  // Each of context_tokens + score_tokens + 1 tokens. The last score_tokens of them are scored:
  // predicted after the context and everything before them went through the compacted cache.
  std::vector<std::vector<TokenId>> documents;
  int64_t context_tokens = 0;
  int64_t score_tokens = 0;
  int32_t generate_tokens = 0;  // of a greedy continuation of each context, for distinct3
  std::vector<RecallContext> needle, lookup;

  // The longest sequence that a driver must hold.
  int64_t max_tokens() const;
};

// `progress`: called with a share of 1 and what is being done.
using EvalProgress = std::function<void(double share, const std::string& note)>;

// Fills everything of a result that depends on the task: reference, cells and their sizes. Errors
// of the driver; INTERNAL naming the cell and the place where logits are not finite.
// REQUIRES: driver->max_branches() >= 2, driver->max_tokens() >= task.max_tokens().
absl::StatusOr<EvalResult> RunEval(const EvalTask& task, const Tokenizer& tokenizer,
                                   EvalDriver* driver, const EvalProgress& progress);

}  // namespace condense

#endif  // CONDENSE_TOOLS_EVAL_EVAL_RUN_H_
