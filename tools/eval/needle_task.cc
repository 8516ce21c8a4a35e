#include "tools/eval/needle_task.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

constexpr const char* kNames[] = {
    "Falcon", "Granite", "Harbor",  "Juniper", "Lantern", "Meadow", "Orchid",  "Pioneer",
    "Quartz", "Raven",   "Saffron", "Timber",  "Violet",  "Walnut", "Copper",  "Dolphin",
    "Ember",  "Glacier", "Indigo",  "Jasper",  "Kestrel", "Lotus",  "Marble",  "Nectar",
    "Onyx",   "Pepper",  "Silver",  "Tulip",   "Velvet",  "Willow", "Crimson", "Badger"};
constexpr const char* kPlaces[] = {"archive", "vault", "library", "station"};

// A different name for each of the first `count`.
std::vector<std::string> DrawNames(int32_t count, std::mt19937_64* random) {
  std::vector<std::string> names(std::begin(kNames), std::end(kNames));
  for (int32_t i = 0; i < count; ++i) {
    std::swap(names[i], names[i + (*random)() % (names.size() - i)]);
  }
  names.resize(count);
  return names;
}

}  // namespace

absl::StatusOr<std::vector<RecallContext>> MakeNeedleContexts(const std::vector<EvalText>& texts,
                                                              const RecallOptions& options,
                                                              const Tokenizer& tokenizer) {
  std::mt19937_64 random(options.seed);
  const int32_t count = (options.questions + kQuestionsPerContext - 1) / kQuestionsPerContext;
  std::vector<RecallContext> contexts;
  for (int32_t c = 0; c < count; ++c) {
    const std::vector<std::string> names = DrawNames(kQuestionsPerContext, &random);
    RecallContext context;
    std::vector<PlantedFact> facts;
    for (int32_t i = 0; i < kQuestionsPerContext; ++i) {
      const std::string question = absl::StrFormat("\nThe access code of the %s %s is", names[i],
                                                   kPlaces[random() % std::size(kPlaces)]);
      const std::string answer = absl::StrFormat("%d", 10000 + random() % 90000);
      const double within = 0.1 + 0.8 * static_cast<double>(random() % 1000) / 1000.0;
      facts.push_back(
          {.text = question + " " + answer + ".\n", .depth = (i + within) / kQuestionsPerContext});
      context.questions.push_back(MakeRecallQuestion(question, answer, tokenizer));
    }
    ASSIGN_OR_RETURN(context.tokens,
                     PlantFacts(texts, c, count, facts, options.context_tokens, tokenizer));
    const int32_t left = options.questions - c * kQuestionsPerContext;
    if (left < kQuestionsPerContext) context.questions.resize(left);
    contexts.push_back(std::move(context));
  }
  return contexts;
}

}  // namespace condense
