#include "tools/eval/lookup_task.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

constexpr const char* kKeys[] = {"amber",  "basil", "cedar",   "denim", "ebony",  "fern",
                                 "ginger", "hazel", "ivory",   "jade",  "khaki",  "lemon",
                                 "maroon", "navy",  "olive",   "peach", "ruby",   "sage",
                                 "teal",   "umber", "vanilla", "wheat", "yellow", "zinc"};

struct Pair {
  std::string key;
  std::string value;
};

std::vector<Pair> DrawPairs(std::mt19937_64* random) {
  std::vector<Pair> pairs;
  for (const char* key : kKeys) {
    pairs.push_back({key, absl::StrFormat("%d", 1000 + (*random)() % 9000)});
  }
  for (size_t i = 0; i < kLookupPairs; ++i) {
    std::swap(pairs[i], pairs[i + (*random)() % (pairs.size() - i)]);
  }
  pairs.resize(kLookupPairs);
  return pairs;
}

}  // namespace

absl::StatusOr<std::vector<RecallContext>> MakeLookupContexts(const std::vector<EvalText>& texts,
                                                              const RecallOptions& options,
                                                              const Tokenizer& tokenizer) {
  static_assert(std::size(kKeys) >= kLookupPairs);
  std::mt19937_64 random(options.seed);
  const int32_t count = (options.questions + kQuestionsPerContext - 1) / kQuestionsPerContext;
  std::vector<RecallContext> contexts;
  for (int32_t c = 0; c < count; ++c) {
    const std::vector<Pair> pairs = DrawPairs(&random);
    PlantedFact list{.text = "\nThe list of codes:\n",
                     .depth = 0.1 + 0.8 * static_cast<double>(random() % 1000) / 1000.0};
    for (const Pair& pair : pairs) list.text += pair.key + ": " + pair.value + "\n";
    RecallContext context;
    ASSIGN_OR_RETURN(context.tokens,
                     PlantFacts(texts, c, count, {list}, options.context_tokens, tokenizer));
    const int32_t asked =
        std::min(kQuestionsPerContext, options.questions - c * kQuestionsPerContext);
    // One from each quarter of the list.
    constexpr int32_t kStride = kLookupPairs / kQuestionsPerContext;
    for (int32_t i = 0; i < asked; ++i) {
      const Pair& pair = pairs[i * kStride + static_cast<int32_t>(random() % kStride)];
      context.questions.push_back(
          MakeRecallQuestion("\nThe list of codes:\n" + pair.key + ":", pair.value, tokenizer));
    }
    contexts.push_back(std::move(context));
  }
  return contexts;
}

}  // namespace condense
