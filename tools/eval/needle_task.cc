#include "tools/eval/needle_task.h"

#include <random>
#include <string>
#include <utility>

#include "engine/probe/fact_words.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

constexpr const char* kPlaces[] = {"archive", "vault", "library", "station"};
static_assert(kFactsTogether == kQuestionsPerContext);
static_assert(std::size(kPlaces) == kQuestionsPerContext);

}  // namespace

absl::StatusOr<std::vector<RecallContext>> MakeNeedleContexts(const std::vector<EvalText>& texts,
                                                              const RecallOptions& options,
                                                              const Tokenizer& tokenizer) {
  std::mt19937_64 random(options.seed);
  const int32_t count = (options.questions + kQuestionsPerContext - 1) / kQuestionsPerContext;
  std::vector<RecallContext> contexts;
  for (int32_t c = 0; c < count; ++c) {
    const std::vector<std::string> kinds = DrawDifferent(kFactKinds, &random);
    const std::vector<std::string> names = DrawDifferent(kFactNames, &random);
    const std::vector<std::string> places = DrawDifferent(kPlaces, &random);
    RecallContext context;
    std::vector<PlantedFact> facts;
    for (int32_t i = 0; i < kQuestionsPerContext; ++i) {
      const std::string question = FactQuestion(kinds[i], names[i], places[i]);
      const std::string answer = DrawFactAnswer(&random);
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
