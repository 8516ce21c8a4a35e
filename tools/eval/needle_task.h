#ifndef CONDENSE_TOOLS_EVAL_NEEDLE_TASK_H_
#define CONDENSE_TOOLS_EVAL_NEEDLE_TASK_H_

// The needle: single facts far apart in unrelated text.

#include <vector>

#include "absl/status/statusor.h"
#include "tools/eval/recall_task.h"

namespace condense {

// Each context holds four lines such as "The access code of the Falcon archive is 48213.", each
// about another thing, one in each quarter. The seed fixes everything. Errors of PlantFacts.
absl::StatusOr<std::vector<RecallContext>> MakeNeedleContexts(const std::vector<EvalText>& texts,
                                                              const RecallOptions& options,
                                                              const Tokenizer& tokenizer);

}  // namespace condense

#endif  // CONDENSE_TOOLS_EVAL_NEEDLE_TASK_H_
