#include "tools/eval/recall_task.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

// For a space, or another way to cut the digits, than the answer alone would take.
constexpr int32_t kSpareTokens = 3;

absl::StatusOr<std::span<const TokenId>> Filler(const std::vector<EvalText>& texts, int64_t index,
                                                int64_t count, int64_t length) {
  const int64_t num_texts = static_cast<int64_t>(texts.size());
  const EvalText& text = texts[index % num_texts];
  if (length > text.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "text \"%s\" has %d tokens; a context takes %d of it", text.name(), text.size(), length));
  }
  return text.Piece(index / num_texts, (count + num_texts - 1) / num_texts, length);
}

}  // namespace

Verdict CheckAnswer(std::string_view text, std::string_view answer) {
  const size_t first = text.find_first_not_of(" \n\t");
  const std::string_view given =
      first == std::string_view::npos ? std::string_view() : text.substr(first);
  const size_t common = std::min(given.size(), answer.size());
  if (given.substr(0, common) != answer.substr(0, common)) return Verdict::kWrong;
  return common == answer.size() ? Verdict::kRight : Verdict::kOpen;
}

RecallQuestion MakeRecallQuestion(std::string text, std::string answer,
                                  const Tokenizer& tokenizer) {
  RecallQuestion question{.text = std::move(text), .answer = std::move(answer)};
  question.tokens = tokenizer.Encode(question.text, {});
  question.max_tokens =
      static_cast<int32_t>(tokenizer.Encode(question.answer, {}).size()) + kSpareTokens;
  return question;
}

absl::StatusOr<std::vector<TokenId>> PlantFacts(const std::vector<EvalText>& texts, int64_t index,
                                                int64_t count,
                                                const std::vector<PlantedFact>& facts,
                                                int64_t context_tokens,
                                                const Tokenizer& tokenizer) {
  std::vector<TokenId> context;
  if (tokenizer.adds_bos() && tokenizer.bos().has_value()) context.push_back(*tokenizer.bos());
  std::vector<std::vector<TokenId>> lines;
  int64_t taken = static_cast<int64_t>(context.size());
  for (const PlantedFact& fact : facts) {
    lines.push_back(tokenizer.Encode(fact.text, {}));
    taken += static_cast<int64_t>(lines.back().size());
  }
  const int64_t filler_tokens = context_tokens - taken;
  if (filler_tokens < 2 * kFreeTail) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--context is %d; the facts to recall need at least %d", context_tokens,
                        taken + 2 * kFreeTail));
  }
  ASSIGN_OR_RETURN(const auto filler, Filler(texts, index, count, filler_tokens));
  int64_t done = 0;
  for (size_t i = 0; i < facts.size(); ++i) {
    const auto wanted =
        static_cast<int64_t>(facts[i].depth * static_cast<double>(filler_tokens - kFreeTail));
    const auto allowed = filler.first(filler_tokens - kFreeTail);
    const int64_t place = SentenceStart(allowed, std::max(done, wanted), tokenizer);
    context.insert(context.end(), filler.begin() + done, filler.begin() + place);
    context.insert(context.end(), lines[i].begin(), lines[i].end());
    done = place;
  }
  context.insert(context.end(), filler.begin() + done, filler.end());
  CHECK_EQ(static_cast<int64_t>(context.size()), context_tokens);
  return context;
}

}  // namespace condense
