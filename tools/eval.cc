// `condense eval`: what compaction costs in quality, measured against the full cache.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "tools/commands.h"
#include "tools/eval/eval_cells.h"
#include "tools/eval/eval_html.h"
#include "tools/eval/eval_report.h"
#include "tools/eval/eval_run.h"
#include "tools/eval/eval_task.h"
#include "tools/eval/eval_text.h"
#include "tools/eval/model_driver.h"
#include "tools/eval/output_file.h"
#include "tools/exit_code.h"
#include "tools/json_io.h"
#include "tools/local_model.h"
#include "tools/progress_bar.h"

namespace condense {
namespace {

constexpr int kMaxTokens = 1 << 20;

struct EvalFlags {
  LocalEngineFlags engine;
  std::vector<std::string> texts;
  EvalCellChoice cells;
  EvalTaskOptions task;
  int32_t branches = 16;
  std::string json_path, html_path;
};

absl::StatusOr<std::vector<EvalText>> ReadTexts(const std::vector<std::string>& paths,
                                                const std::string& model_path,
                                                std::unique_ptr<const Tokenizer>* tokenizer) {
  std::vector<std::string> contents;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(contents.emplace_back(), ReadEvalText(path));
  }
  ASSIGN_OR_RETURN(*tokenizer, OpenTokenizer(model_path));
  std::vector<EvalText> texts;
  for (size_t i = 0; i < paths.size(); ++i) {
    texts.emplace_back(std::filesystem::path(paths[i]).filename().string(), contents[i],
                       **tokenizer);
  }
  return texts;
}

absl::Status WriteResult(const EvalFlags& flags, const EvalResult& result) {
  if (flags.json_path == "-") {
    std::printf("%s\n", ToJsonText(EvalJson(result), true).c_str());
  } else {
    std::fputs(EvalTable(result).c_str(), stdout);
  }
  if (!flags.json_path.empty() && flags.json_path != "-") {
    RETURN_IF_ERROR(WriteFile(flags.json_path, ToJsonText(EvalJson(result), true) + "\n"));
  }
  if (!flags.html_path.empty()) RETURN_IF_ERROR(WriteFile(flags.html_path, EvalHtml(result)));
  return absl::OkStatus();
}

absl::Status RunEvalCommand(const EvalFlags& flags) {
  // Whatever can be refused is refused before the model is loaded.
  ASSIGN_OR_RETURN(std::vector<EvalCell> cells, MakeEvalCells(flags.cells));
  if (!flags.json_path.empty() && flags.json_path != "-") {
    RETURN_IF_ERROR(CheckWritable("--json", flags.json_path));
  }
  if (!flags.html_path.empty()) RETURN_IF_ERROR(CheckWritable("--html", flags.html_path));
  std::unique_ptr<const Tokenizer> tokenizer;
  ASSIGN_OR_RETURN(const std::vector<EvalText> texts,
                   ReadTexts(flags.texts, flags.engine.model_path, &tokenizer));
  ASSIGN_OR_RETURN(const EvalTask task,
                   MakeEvalTask(flags.task, texts, *tokenizer, std::move(cells)));
  const int32_t wanted = static_cast<int32_t>(task.cells.size()) + 1;
  ASSIGN_OR_RETURN(const auto driver,
                   ModelDriver::Make({.model_path = flags.engine.model_path,
                                      .backend = flags.engine.backend,
                                      .step_tokens = flags.engine.step_tokens,
                                      .max_tokens = task.max_tokens(),
                                      .max_branches = std::min(flags.branches, wanted)}));
  absl::StatusOr<EvalResult> result;
  {
    ProgressBar bar(true);
    result = RunEval(task, *tokenizer, driver.get(),
                     [&bar](double share, const std::string& note) { bar.Show(share, note); });
  }
  RETURN_IF_ERROR(result.status());
  result->model = std::filesystem::path(flags.engine.model_path).filename().string();
  result->device = driver->device();
  for (const EvalText& text : texts) result->texts.push_back(text.name());
  return WriteResult(flags, *result);
}

void AddCellOptions(CLI::App* command, EvalCellChoice* cells) {
  command
      ->add_option("--policy", cells->policies,
                   "Policies to judge, each at every ratio; comma-separated")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group("Cells");
  command
      ->add_option("--ratio", cells->ratios,
                   "Ratios of 16-bit bytes to bytes held that they are to reach")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group("Cells");
  command->add_option("--preset", cells->presets, "Presets to judge")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group("Cells");
  command
      ->add_flag("--floors,!--no-floors", cells->floors,
                 "Add the policies \"random\" and \"window\" at the same ratios")
      ->group("Cells");
}

void AddTaskOptions(CLI::App* command, EvalTaskOptions* task) {
  const auto add = [&](const char* name, auto* value, const char* help, int low, int high) {
    command->add_option(name, *value, help)
        ->check(CLI::Range(low, high))
        ->capture_default_str()
        ->group("Task");
  };
  add("--context", &task->context_tokens, "Tokens before the first scored one", 16, kMaxTokens);
  add("--score", &task->score_tokens, "Scored tokens of each document", 1, kMaxTokens);
  add("--documents", &task->documents, "Documents from each text", 1, 1 << 16);
  add("--generate", &task->generate_tokens,
      "Tokens of a greedy continuation, for distinct-3; 0: none", 0, kMaxTokens);
  add("--needle", &task->needle, "Questions about single facts, asked after compaction", 0,
      1 << 16);
  add("--lookup", &task->lookup, "Questions about a list of keys and values", 0, 1 << 16);
  command->add_option("--seed", task->seed, "Other facts and questions")
      ->capture_default_str()
      ->group("Task");
}

}  // namespace

void AddEval(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command = app->add_subcommand("eval", "What compaction of the cache costs in quality");
  flags->engine.AddTo(command);
  command->add_option("--text", flags->texts, "Text files to take documents from; comma-separated")
      ->required()
      ->delimiter(',')
      ->allow_extra_args(false);
  AddCellOptions(command, &flags->cells);
  AddTaskOptions(command, &flags->task);
  command
      ->add_option("--branches", flags->branches,
                   "Caches that are decoded side by side; each takes memory")
      ->check(CLI::Range(2, 1024))
      ->capture_default_str()
      ->group("Engine");
  command->add_option("--json", flags->json_path,
                      "Write the numbers to this file; -: to stdout, instead of the table");
  command->add_option("--html", flags->html_path, "Write a page with curves to this file");
  command->footer(
      "Every cell is compared with the full cache on the same tokens. The policies \"random\" and\n"
      "\"window\" at the same ratios are what any policy must beat. Without cells,\n"
      "all presets are judged.\n\n"
      "Example:\n"
      "  condense eval MODEL --text wiki.txt,book.txt --policy balanced,similarity --ratio 2,4,6\n"
      "      --needle 160 --json eval.json --html eval.html");
  command->callback([flags, exit_code] {
    const absl::Status status = RunEvalCommand(*flags);
    *exit_code = status.ok() ? static_cast<int>(kExitOk) : Fail(status);
  });
}

}  // namespace condense
