#ifndef CONDENSE_TOOLS_EVAL_RECALL_TASK_H_
#define CONDENSE_TOOLS_EVAL_RECALL_TASK_H_

// Contexts that hold facts, and questions that come when the context has been compacted.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/tokenizer.h"
#include "tools/eval/eval_text.h"

namespace condense {

// The beginning of a fact; greedy decoding is to end it.
struct RecallQuestion {
  std::string text;
  std::vector<TokenId> tokens;
  std::string answer;      // digits
  int32_t max_tokens = 0;  // that the answer may take
};

struct RecallContext {
  std::vector<TokenId> tokens;
  std::vector<RecallQuestion> questions;
};

struct RecallOptions {
  int64_t context_tokens = 0;  // exactly, BOS included
  int32_t questions = 0;       // in all contexts together
  uint64_t seed = 1;
};
inline constexpr int32_t kQuestionsPerContext = 4;

// A line put into real text.
struct PlantedFact {
  std::string text;
  double depth = 0.0;  // in [0, 1]: 0 at the beginning, 1 at kFreeTail tokens before the end
};
inline constexpr int64_t kFreeTail = 96;  // no fact where caches protect the newest tokens

enum class Verdict : uint8_t { kOpen, kRight, kWrong };
// What the text decoded so far says: right once it begins with the answer (spaces before it do not
// count), wrong once it no longer can.
Verdict CheckAnswer(std::string_view text, std::string_view answer);

RecallQuestion MakeRecallQuestion(std::string text, std::string answer, const Tokenizer& tokenizer);
// Context `index` of `count`: a piece of one of the texts with the facts, ordered by depth, before
// sentences near their depths; BOS before all if the model wants one.
// INVALID_ARGUMENT if a text or the context is too short, with the numbers. REQUIRES: `texts` is
// not empty.
absl::StatusOr<std::vector<TokenId>> PlantFacts(const std::vector<EvalText>& texts, int64_t index,
                                                int64_t count,
                                                const std::vector<PlantedFact>& facts,
                                                int64_t context_tokens, const Tokenizer& tokenizer);

}  // namespace condense

#endif  // CONDENSE_TOOLS_EVAL_RECALL_TASK_H_
