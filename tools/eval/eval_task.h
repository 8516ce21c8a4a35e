#ifndef CONDENSE_TOOLS_EVAL_EVAL_TASK_H_
#define CONDENSE_TOOLS_EVAL_EVAL_TASK_H_

// What an evaluation has to do: cells, documents to score, questions to ask.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/tokenizer.h"
#include "tools/eval/eval_cells.h"
#include "tools/eval/eval_text.h"
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

struct EvalTaskOptions {
  int64_t context_tokens = 1536;
  int64_t score_tokens = 256;
  int32_t documents = 2;  // of each text
  int32_t generate_tokens = 64;
  int32_t needle = 0, lookup = 0;  // questions
  uint64_t seed = 1;               // of the questions
};

// Documents are evenly spread over each text and do not overlap; each begins with BOS if the model
// wants one. INVALID_ARGUMENT naming the text, its tokens and those that are needed.
// REQUIRES: `texts` is not empty.
absl::StatusOr<EvalTask> MakeEvalTask(const EvalTaskOptions& options,
                                      const std::vector<EvalText>& texts,
                                      const Tokenizer& tokenizer, std::vector<EvalCell> cells);

}  // namespace condense

#endif  // CONDENSE_TOOLS_EVAL_EVAL_TASK_H_
