#ifndef CONDENSE_ENGINE_PROBE_CANARY_TEXT_H_
#define CONDENSE_ENGINE_PROBE_CANARY_TEXT_H_

// The synthetic text of a retrieval canary: prose without a number in it, facts planted in it, and
// questions about them behind it.

#include <cstdint>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace condense {

struct CanaryText {
  // [begin, end) of `forced`.
  struct Answer {
    int32_t begin = 0;
    int32_t end = 0;
  };
  std::vector<TokenId> prompt;  // the prose with the facts
  std::vector<TokenId> forced;  // more prose, then for each fact its beginning and its answer
  std::vector<Answer> answers;  // in the order of the questions
};

// A question before there has been time to compact the prompt would ask nothing of compaction.
inline constexpr int32_t kCanaryRunUp = 64;  // tokens of prose before the first question

// kFactsTogether facts, or fewer where a short prompt has no room for them. `tokens` is the length
// of the prompt, give or take a sentence; no fact stands in its last tenth. Another seed, other
// sentences and facts. REQUIRES: tokens >= 256.
CanaryText MakeCanaryText(const Tokenizer& tokenizer, int32_t tokens, uint64_t seed);

}  // namespace condense

#endif  // CONDENSE_ENGINE_PROBE_CANARY_TEXT_H_
