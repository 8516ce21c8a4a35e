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
// Each once in a context. With one kind for all four facts a small model mixes them up even in the
// full cache, and what it cannot answer there measures nothing.
constexpr const char* kKinds[] = {"access code", "phone number", "locker number", "serial number"};
constexpr const char* kPlaces[] = {"archive", "vault", "library", "station"};
static_assert(std::size(kKinds) == kQuestionsPerContext);
static_assert(std::size(kPlaces) == kQuestionsPerContext);

// Four different ones.
template <size_t kCount>
std::vector<std::string> DrawFour(const char* const (&words)[kCount], std::mt19937_64* random) {
  std::vector<std::string> drawn(std::begin(words), std::end(words));
  for (size_t i = 0; i < kQuestionsPerContext; ++i) {
    std::swap(drawn[i], drawn[i + (*random)() % (drawn.size() - i)]);
  }
  drawn.resize(kQuestionsPerContext);
  return drawn;
}

}  // namespace

absl::StatusOr<std::vector<RecallContext>> MakeNeedleContexts(const std::vector<EvalText>& texts,
                                                              const RecallOptions& options,
                                                              const Tokenizer& tokenizer) {
  std::mt19937_64 random(options.seed);
  const int32_t count = (options.questions + kQuestionsPerContext - 1) / kQuestionsPerContext;
  std::vector<RecallContext> contexts;
  for (int32_t c = 0; c < count; ++c) {
    const std::vector<std::string> kinds = DrawFour(kKinds, &random);
    const std::vector<std::string> names = DrawFour(kNames, &random);
    const std::vector<std::string> places = DrawFour(kPlaces, &random);
    RecallContext context;
    std::vector<PlantedFact> facts;
    for (int32_t i = 0; i < kQuestionsPerContext; ++i) {
      const std::string question =
          absl::StrFormat("\nThe %s of the %s %s is", kinds[i], names[i], places[i]);
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
