#include "tools/eval/eval_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

// Everything about one cell while it is measured.
struct CellRun {
  CellRun(CellResult* result_in, int32_t vocab) : result(result_in), stats(vocab) {}

  CellResult* result;
  QualityStats stats;
  double distinct3 = 0.0;  // sums
  double hit_ratio = 0.0;  // times swaps
};

class EvalRun {
 public:
  EvalRun(const EvalTask& task, const Tokenizer& tokenizer, EvalDriver* driver,
          const EvalProgress& progress, EvalResult* result)
      : task_(task),
        tokenizer_(tokenizer),
        driver_(driver),
        progress_(progress),
        reference_(&result->reference, driver->vocab()) {
    runs_.reserve(result->cells.size());
    for (CellResult& cell : result->cells) runs_.emplace_back(&cell, driver->vocab());
    logits_.resize(static_cast<size_t>(driver->max_branches()) * driver->vocab());
  }

  absl::Status Run() {
    const int64_t groups = static_cast<int64_t>(Groups(driver_->max_branches() - 1).size());
    const auto documents = static_cast<int64_t>(task_.documents.size());
    jobs_ = documents * groups + static_cast<int64_t>(task_.needle.size() + task_.lookup.size());
    for (int64_t d = 0; d < documents; ++d) {
      note_ = absl::StrFormat("document %d of %d", d + 1, documents);
      RETURN_IF_ERROR(ScoreDocument(d));
    }
    RETURN_IF_ERROR(Recall(task_.needle, &CellResult::needle, "needle"));
    RETURN_IF_ERROR(Recall(task_.lookup, &CellResult::lookup, "look-up"));
    Finish(&reference_);
    for (CellRun& run : runs_) Finish(&run);
    return absl::OkStatus();
  }

 private:
  using Group = std::vector<CellRun*>;

  // The cells, at most `size` at a time; one empty group where there are no cells.
  std::vector<Group> Groups(int32_t size) {
    std::vector<Group> groups(1);
    for (CellRun& run : runs_) {
      if (static_cast<int32_t>(groups.back().size()) == size) groups.emplace_back();
      groups.back().push_back(&run);
    }
    return groups;
  }

  // Branches of the prefilled context, settled.
  absl::Status Branch(const Group& group) {
    group_ = &group;
    std::vector<Compression> compressions;
    for (const CellRun* run : group) compressions.push_back(run->result->cell.compression);
    RETURN_IF_ERROR(driver_->Fork(compressions));
    return driver_->Settle();
  }

  absl::Status Step(const std::vector<TokenId>& tokens) {
    CHECK_EQ(tokens.size(), group_->size());
    return driver_->Step(tokens, logits_.data());
  }
  absl::Status StepAll(TokenId token) { return Step(std::vector<TokenId>(group_->size(), token)); }
  const float* Row(size_t branch) const {
    return logits_.data() + branch * static_cast<size_t>(driver_->vocab());
  }
  std::vector<TokenId> MostLikely() const {
    std::vector<TokenId> tokens(group_->size());
    for (size_t b = 0; b < tokens.size(); ++b) {
      tokens[b] = ArgMax(std::span(Row(b), static_cast<size_t>(driver_->vocab())));
    }
    return tokens;
  }

  absl::Status ScoreDocument(int64_t index) {
    const std::vector<TokenId>& document = task_.documents[index];
    CHECK_EQ(static_cast<int64_t>(document.size()), task_.context_tokens + task_.score_tokens + 1);
    bool first = true;  // the reference runs beside every group but counts once
    for (Group& cells : Groups(driver_->max_branches() - 1)) {
      Group group = {&reference_};
      group.insert(group.end(), cells.begin(), cells.end());
      RETURN_IF_ERROR(driver_->Prefill(std::span(document).first(task_.context_tokens)));
      RETURN_IF_ERROR(Branch(group));
      RETURN_IF_ERROR(ScoreGroup(document, first ? 0 : 1));
      for (size_t b = first ? 0 : 1; b < group.size(); ++b) AddState(group[b], b);
      RETURN_IF_ERROR(GenerateGroup(document[task_.context_tokens], first ? 0 : 1));
      first = false;
      JobDone();
    }
    return absl::OkStatus();
  }

  absl::Status ScoreGroup(const std::vector<TokenId>& document, size_t first_branch) {
    for (size_t b = first_branch; b < group_->size(); ++b) (*group_)[b]->stats.StartDocument();
    for (int64_t i = 0; i < task_.score_tokens; ++i) {
      const int64_t at = task_.context_tokens + i;
      RETURN_IF_ERROR(StepAll(document[at]));
      for (size_t b = first_branch; b < group_->size(); ++b) {
        CellRun* run = (*group_)[b];
        if (run->stats.Add(Row(0), Row(b), document[at + 1])) continue;
        return absl::InternalError(
            absl::StrFormat("logits are not finite: cell %s or the full cache, %s, token %d",
                            run->result->cell.name, note_, at));
      }
      Progress(static_cast<double>(i) /
               static_cast<double>(task_.score_tokens + task_.generate_tokens));
    }
    return absl::OkStatus();
  }

  // A greedy continuation of the settled contexts, the first token given.
  absl::Status GenerateGroup(TokenId token, size_t first_branch) {
    if (task_.generate_tokens == 0) return absl::OkStatus();
    RETURN_IF_ERROR(driver_->Rewind());
    std::vector<TokenId> tokens(group_->size(), token);
    std::vector<std::vector<TokenId>> generated(group_->size());
    for (int32_t i = 0; i < task_.generate_tokens; ++i) {
      RETURN_IF_ERROR(Step(tokens));
      tokens = MostLikely();
      for (size_t b = 0; b < tokens.size(); ++b) generated[b].push_back(tokens[b]);
      Progress(static_cast<double>(task_.score_tokens + i) /
               static_cast<double>(task_.score_tokens + task_.generate_tokens));
    }
    for (size_t b = first_branch; b < group_->size(); ++b) {
      (*group_)[b]->distinct3 += DistinctShare(generated[b], 3);
    }
    return absl::OkStatus();
  }

  void AddState(CellRun* run, size_t branch) {
    const BranchState state = driver_->State(static_cast<int32_t>(branch));
    CellResult* result = run->result;
    result->bytes += state.bytes;
    result->bytes_16bit += state.bytes_16bit;
    result->swaps_accepted += state.swaps_accepted;
    result->swaps_refused += state.swaps_refused;
    result->seconds += state.seconds;
    run->hit_ratio +=
        state.hit_ratio * static_cast<double>(state.swaps_accepted + state.swaps_refused);
  }

  absl::Status Recall(const std::vector<RecallContext>& contexts, RecallScore CellResult::*score,
                      const char* name) {
    for (size_t c = 0; c < contexts.size(); ++c) {
      note_ = absl::StrFormat("%s %d of %d", name, c + 1, contexts.size());
      Progress(0.0);
      RETURN_IF_ERROR(RecallInContext(contexts[c], score));
      JobDone();
    }
    return absl::OkStatus();
  }

  // The full cache first, alone: what it cannot answer nobody else is asked.
  absl::Status RecallInContext(const RecallContext& context, RecallScore CellResult::*score) {
    RETURN_IF_ERROR(driver_->Prefill(context.tokens));
    std::vector<const RecallQuestion*> solved;
    for (const RecallQuestion& question : context.questions) solved.push_back(&question);
    ASSIGN_OR_RETURN(solved, Ask({&reference_}, solved, score));
    const auto num_asked = static_cast<int32_t>(context.questions.size());
    const auto num_solved = static_cast<int32_t>(solved.size());
    (reference_.result->*score).asked += num_asked;
    (reference_.result->*score).solved += num_solved;
    for (CellRun& run : runs_) {
      (run.result->*score).asked += num_asked;
      (run.result->*score).solved += num_solved;
    }
    if (solved.empty()) return absl::OkStatus();
    for (const Group& group : Groups(driver_->max_branches())) {
      if (!group.empty()) RETURN_IF_ERROR(Ask(group, solved, score).status());
    }
    return absl::OkStatus();
  }

  // Every question to every cell of the group, each from the settled context; counts the right
  // answers. Returns the questions that the first of them answered.
  absl::StatusOr<std::vector<const RecallQuestion*>> Ask(
      const Group& group, const std::vector<const RecallQuestion*>& questions,
      RecallScore CellResult::*score) {
    std::vector<const RecallQuestion*> answered;
    RETURN_IF_ERROR(Branch(group));
    for (const RecallQuestion* question : questions) {
      RETURN_IF_ERROR(driver_->Rewind());
      ASSIGN_OR_RETURN(const std::vector<Verdict> verdicts, Answer(*question));
      for (size_t b = 0; b < group.size(); ++b) {
        (group[b]->result->*score).right += verdicts[b] == Verdict::kRight;
      }
      if (verdicts.front() == Verdict::kRight) answered.push_back(question);
    }
    return answered;
  }

  absl::StatusOr<std::vector<Verdict>> Answer(const RecallQuestion& question) {
    for (const TokenId token : question.tokens) RETURN_IF_ERROR(StepAll(token));
    std::vector<std::string> texts(group_->size());
    std::vector<Verdict> verdicts(group_->size(), Verdict::kOpen);
    for (int32_t i = 0; i < question.max_tokens; ++i) {
      const std::vector<TokenId> tokens = MostLikely();
      for (size_t b = 0; b < tokens.size(); ++b) {
        texts[b] += tokenizer_.TokenBytes(tokens[b], /*special=*/false);
        if (verdicts[b] == Verdict::kOpen) verdicts[b] = CheckAnswer(texts[b], question.answer);
      }
      const bool open = std::count(verdicts.begin(), verdicts.end(), Verdict::kOpen) > 0;
      if (!open || i + 1 == question.max_tokens) break;
      RETURN_IF_ERROR(Step(tokens));
    }
    return verdicts;
  }

  void Finish(CellRun* run) {
    CellResult* result = run->result;
    result->quality = run->stats.Summary();
    const int64_t swaps = result->swaps_accepted + result->swaps_refused;
    if (swaps > 0) result->hit_ratio = run->hit_ratio / static_cast<double>(swaps);
    if (task_.generate_tokens > 0 && !task_.documents.empty()) {
      result->distinct3 = run->distinct3 / static_cast<double>(task_.documents.size());
    }
  }

  void Progress(double within) {
    progress_((static_cast<double>(done_) + within) / static_cast<double>(jobs_), note_);
  }
  void JobDone() { ++done_; }

  const EvalTask& task_;
  const Tokenizer& tokenizer_;
  EvalDriver* const driver_;
  const EvalProgress& progress_;
  CellRun reference_;
  std::vector<CellRun> runs_;
  const Group* group_ = nullptr;  // of the driver's branches
  std::vector<float> logits_;     // [branches, V]
  std::string note_;
  int64_t jobs_ = 0, done_ = 0;
};

}  // namespace

absl::StatusOr<EvalResult> RunEval(const EvalTask& task, const Tokenizer& tokenizer,
                                   EvalDriver* driver, const EvalProgress& progress) {
  CHECK_GE(driver->max_branches(), 2);
  CHECK_GE(driver->max_tokens(), task.max_tokens());
  const absl::Time start = absl::Now();
  EvalResult result{.context_tokens = task.context_tokens,
                    .score_tokens = task.score_tokens,
                    .documents = static_cast<int64_t>(task.documents.size()),
                    .generate_tokens = task.generate_tokens};
  result.reference.cell.name = "full cache";
  for (const EvalCell& cell : task.cells) result.cells.push_back({.cell = cell});
  RETURN_IF_ERROR(EvalRun(task, tokenizer, driver, progress, &result).Run());
  result.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  return result;
}

}  // namespace condense
