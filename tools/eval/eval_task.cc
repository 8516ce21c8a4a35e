#include "tools/eval/eval_task.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "tools/eval/lookup_task.h"
#include "tools/eval/needle_task.h"

namespace condense {
namespace {

absl::Status AddDocuments(const EvalText& text, int32_t count, int64_t length,
                          const Tokenizer& tokenizer, EvalTask* task) {
  std::vector<TokenId> begin;
  if (tokenizer.adds_bos() && tokenizer.bos().has_value()) begin.push_back(*tokenizer.bos());
  const int64_t taken = length - static_cast<int64_t>(begin.size());
  if (text.size() / taken < count) {
    return absl::InvalidArgumentError(
        absl::StrFormat("text \"%s\" has %d tokens; %d documents take %d", text.name(), text.size(),
                        count, count * taken));
  }
  for (int32_t i = 0; i < count; ++i) {
    std::vector<TokenId> document = begin;
    const std::span<const TokenId> piece = text.Piece(i, count, taken);
    document.insert(document.end(), piece.begin(), piece.end());
    task->documents.push_back(std::move(document));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t EvalTask::max_tokens() const {
  int64_t tokens = context_tokens + std::max<int64_t>(score_tokens, generate_tokens);
  for (const auto* contexts : {&needle, &lookup}) {
    for (const RecallContext& context : *contexts) {
      for (const RecallQuestion& question : context.questions) {
        tokens =
            std::max(tokens, static_cast<int64_t>(context.tokens.size() + question.tokens.size()) +
                                 question.max_tokens);
      }
    }
  }
  return tokens;
}

absl::StatusOr<EvalTask> MakeEvalTask(const EvalTaskOptions& options,
                                      const std::vector<EvalText>& texts,
                                      const Tokenizer& tokenizer, std::vector<EvalCell> cells) {
  EvalTask task{.cells = std::move(cells),
                .context_tokens = options.context_tokens,
                .score_tokens = options.score_tokens,
                .generate_tokens = options.generate_tokens};
  const int64_t length = options.context_tokens + options.score_tokens + 1;
  for (const EvalText& text : texts) {
    RETURN_IF_ERROR(AddDocuments(text, options.documents, length, tokenizer, &task));
  }
  RecallOptions recall{.context_tokens = options.context_tokens, .seed = options.seed};
  recall.questions = options.needle;
  ASSIGN_OR_RETURN(task.needle, MakeNeedleContexts(texts, recall, tokenizer));
  recall.questions = options.lookup;
  ASSIGN_OR_RETURN(task.lookup, MakeLookupContexts(texts, recall, tokenizer));
  return task;
}

}  // namespace condense
