#ifndef CONDENSE_TOOLS_EVAL_LOOKUP_TASK_H_
#define CONDENSE_TOOLS_EVAL_LOOKUP_TASK_H_

// Key-value look-up: many facts of one shape close together.

#include <vector>

#include "absl/status/statusor.h"
#include "tools/eval/recall_task.h"

namespace condense {

// Each context holds one list of kLookupPairs lines such as "amber: 4821", and is asked for the
// values of four keys. What is alike is what a policy would like to merge, so this is harder on a
// cache than the needle. The seed fixes everything. Errors of PlantFacts.
inline constexpr int32_t kLookupPairs = 16;
absl::StatusOr<std::vector<RecallContext>> MakeLookupContexts(const std::vector<EvalText>& texts,
                                                              const RecallOptions& options,
                                                              const Tokenizer& tokenizer);

}  // namespace condense

#endif  // CONDENSE_TOOLS_EVAL_LOOKUP_TASK_H_
