#ifndef CONDENSE_TOOLS_EVAL_EVAL_RUN_H_
#define CONDENSE_TOOLS_EVAL_EVAL_RUN_H_

// The evaluation itself: documents scored and questions asked, every cell beside the full cache.

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/tokenizer/tokenizer.h"
#include "tools/eval/eval_driver.h"
#include "tools/eval/eval_result.h"
#include "tools/eval/eval_task.h"

namespace condense {

// `progress`: called with a share of 1 and what is being done.
using EvalProgress = std::function<void(double share, const std::string& note)>;

// Fills everything of a result that depends on the task: reference, cells and their sizes. Errors
// of the driver; INTERNAL naming the cell and the place where logits are not finite.
// REQUIRES: driver->max_branches() >= 2, driver->max_tokens() >= task.max_tokens().
absl::StatusOr<EvalResult> RunEval(const EvalTask& task, const Tokenizer& tokenizer,
                                   EvalDriver* driver, const EvalProgress& progress);

}  // namespace condense

#endif  // CONDENSE_TOOLS_EVAL_EVAL_RUN_H_
