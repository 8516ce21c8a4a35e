// The evaluation from flags' values to the report, on a driver without a model.

#include "tools/eval/eval_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/tools/eval/byte_tokenizer.h"
#include "tests/tools/eval/fake_driver.h"
#include "tools/eval/eval_html.h"
#include "tools/eval/eval_report.h"

namespace condense {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr EvalTaskOptions kOptions{.context_tokens = 600,
                                   .score_tokens = 40,
                                   .documents = 2,
                                   .generate_tokens = 12,
                                   .needle = 6,
                                   .lookup = 4};

std::vector<EvalText> Texts() {
  const char* const words[] = {"river ", "stone ", "lamp ", "quiet ", "walks. ", "and ", "seven\n"};
  std::string text;
  for (uint32_t i = 0; text.size() < 3000; ++i) text += words[(i * i * 2654435761u >> 13) % 7];
  return {EvalText("words.txt", text, ByteTokenizer())};
}

EvalTask MakeTask(const EvalCellChoice& choice, const EvalTaskOptions& options = kOptions) {
  auto cells = MakeEvalCells(choice);
  EXPECT_TRUE(cells.ok()) << cells.status();
  auto task = MakeEvalTask(options, Texts(), ByteTokenizer(), *std::move(cells));
  EXPECT_TRUE(task.ok()) << task.status();
  return *std::move(task);
}

FakeDriver MakeDriver(const EvalTask& task, int32_t max_branches) {
  return FakeDriver(ByteTokenizer().vocab_size(), task.max_tokens(), max_branches);
}

EvalResult Evaluate(const EvalTask& task, int32_t max_branches = 8) {
  FakeDriver driver = MakeDriver(task, max_branches);
  auto result = RunEval(task, ByteTokenizer(), &driver, [](double, const std::string&) {});
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

const CellResult& Find(const EvalResult& result, const std::string& name) {
  for (const CellResult& cell : result.cells) {
    if (cell.cell.name == name) return cell;
  }
  ADD_FAILURE() << "no cell " << name;
  return result.reference;
}

TEST(EvalTaskTest, DocumentsAreAsLongAsTheyMustBe) {
  const EvalTask task = MakeTask({.presets = {"off"}});
  ASSERT_EQ(task.documents.size(), 2u);
  for (const auto& document : task.documents) EXPECT_EQ(document.size(), 641u);
  EXPECT_EQ(task.needle.size(), 2u);
  EXPECT_EQ(task.lookup.size(), 1u);
}

TEST(EvalTaskTest, DocumentsBeginWithBosWhereTheModelWantsIt) {
  const auto task = MakeEvalTask(kOptions, Texts(), ByteTokenizer(/*adds_bos=*/true), {});
  ASSERT_TRUE(task.ok());
  for (const auto& document : task->documents) {
    EXPECT_EQ(document.front(), ByteTokenizer::kBos);
    EXPECT_EQ(document.size(), 641u);
  }
}

TEST(EvalTaskTest, TooShortATextIsRefusedWithTheNumbers) {
  EvalTaskOptions options = kOptions;
  options.documents = 5;
  const auto task = MakeEvalTask(options, Texts(), ByteTokenizer(), {});
  EXPECT_EQ(task.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(task.status().message()), HasSubstr("words.txt"));
  EXPECT_THAT(std::string(task.status().message()), HasSubstr("3205"));  // 5 * 641
}

TEST(EvalRunTest, TheFullCacheIsTheCeiling) {
  const EvalResult result = Evaluate(MakeTask({.presets = {"off"}}));
  const CellResult& off = Find(result, "off");
  for (const CellResult* cell : {&result.reference, &off}) {
    EXPECT_EQ(cell->quality.tokens, 80);
    EXPECT_EQ(cell->quality.kld_mean, 0.0);
    EXPECT_EQ(cell->quality.ppl_delta_pct, 0.0);
    EXPECT_EQ(cell->quality.top1, 1.0);
    EXPECT_EQ(cell->bytes_ratio(), 1.0);
    // Its contexts say every answer once, and it remembers all of them.
    EXPECT_EQ(cell->needle.asked, 6);
    EXPECT_EQ(cell->needle.right, 6);
    EXPECT_EQ(cell->lookup.right, 4);
  }
  EXPECT_EQ(off.quality.ppl, result.reference.quality.ppl);
  EXPECT_EQ(off.distinct3, result.reference.distinct3);
}

TEST(EvalRunTest, EveryTokenIsPredictedFromThoseBeforeIt) {
  const EvalTask task = MakeTask({.presets = {"off"}});
  FakeDriver driver = MakeDriver(task, 1);
  const int32_t vocab = driver.vocab();
  std::vector<float> logits(vocab);
  double nll = 0.0;
  for (const std::vector<TokenId>& document : task.documents) {
    ASSERT_TRUE(driver.Prefill(std::span(document).first(600)).ok());
    ASSERT_TRUE(driver.Fork(std::vector<Compression>(1)).ok());
    for (size_t i = 600; i + 1 < document.size(); ++i) {
      ASSERT_TRUE(driver.Step(std::span(document).subspan(i, 1), logits.data()).ok());
      double sum = 0.0;
      for (const float logit : logits) sum += std::exp(double{logit} - logits[document[i + 1]]);
      nll += std::log(sum);
    }
  }
  const double expected = std::exp(nll / 80);
  EXPECT_NEAR(Evaluate(task).reference.quality.ppl, expected, 1e-5 * expected);
}

TEST(EvalRunTest, WhatForgetsCannotAnswer) {
  const EvalResult result = Evaluate(MakeTask({.policies = {"none"}, .ratios = {4}}));
  ASSERT_EQ(result.cells.size(), 3u);
  EXPECT_EQ(Find(result, "none@4").needle.right, 6);
  EXPECT_EQ(Find(result, "window@4").needle.solved, 6);
  // A quarter of the text is remembered, and with it the facts of the last quarter.
  EXPECT_LE(Find(result, "window@4").needle.right, 2);
  EXPECT_GT(Find(result, "none@4").quality.kld_mean, 0.0);
  EXPECT_GT(Find(result, "window@4").quality.kld_mean, Find(result, "none@4").quality.kld_mean);
  EXPECT_LT(Find(result, "window@4").quality.top1, 1.0);
  EXPECT_NEAR(Find(result, "window@4").bytes_ratio(), 4.0, 0.01);
}

TEST(EvalRunTest, StatesAreThoseOfTheDocuments) {
  const EvalResult result = Evaluate(MakeTask({.policies = {"none"}, .ratios = {4}}));
  const CellResult& cell = Find(result, "none@4");
  EXPECT_EQ(cell.bytes_16bit, 2 * 640 * 64);
  EXPECT_EQ(cell.swaps_accepted, 2 * 3);
  EXPECT_EQ(cell.swaps_refused, 2 * 1);
  EXPECT_DOUBLE_EQ(cell.hit_ratio, 0.9);
  EXPECT_DOUBLE_EQ(cell.seconds, 0.5);
}

TEST(EvalRunTest, GroupsOfCellsChangeNothing) {
  const EvalTask task = MakeTask({.policies = {"none", "similarity"}, .ratios = {2, 3, 6}});
  EvalResult together = Evaluate(task, 32), apart = Evaluate(task, 2), uneven = Evaluate(task, 5);
  together.seconds = apart.seconds = uneven.seconds = 0.0;
  EXPECT_EQ(EvalJson(together).dump(), EvalJson(apart).dump());
  EXPECT_EQ(EvalJson(together).dump(), EvalJson(uneven).dump());
}

TEST(EvalRunTest, OnlyWhatTheFullCacheSolvesCounts) {
  EvalTask task = MakeTask({.policies = {"none"}, .ratios = {4}});
  task.needle[0].questions[1].answer = "nothing of the kind";
  for (RecallQuestion& question : task.lookup[0].questions) question.answer = "0";
  const EvalResult result = Evaluate(task);
  EXPECT_EQ(result.reference.needle.asked, 6);
  for (const CellResult& cell : result.cells) EXPECT_EQ(cell.needle.solved, 5);
  EXPECT_EQ(Find(result, "none@4").needle.right, 5);
  EXPECT_EQ(result.reference.lookup.solved, 0);
  EXPECT_FALSE(result.reference.lookup.share().has_value());
}

TEST(EvalRunTest, ProgressRisesToOne) {
  const EvalTask task = MakeTask({.presets = {"off"}});
  FakeDriver driver = MakeDriver(task, 4);
  double last = 0.0;
  std::vector<std::string> notes;
  const auto result =
      RunEval(task, ByteTokenizer(), &driver, [&](double share, const std::string& note) {
        EXPECT_GE(share, last);
        EXPECT_LE(share, 1.0);
        last = share;
        if (notes.empty() || notes.back() != note) notes.push_back(note);
      });
  ASSERT_TRUE(result.ok());
  EXPECT_GT(last, 0.7);
  EXPECT_EQ(notes.front(), "document 1 of 2");
  EXPECT_EQ(notes.back(), "look-up 1 of 1");
}

TEST(EvalRunTest, AFailureOfTheDriverAtAnyCallEndsTheRun) {
  EvalTaskOptions options{.context_tokens = 600,
                          .score_tokens = 2,
                          .documents = 1,
                          .generate_tokens = 2,
                          .needle = 1,
                          .lookup = 0};
  const EvalTask task = MakeTask({.policies = {"none"}, .ratios = {4}}, options);
  const auto ignore = [](double, const std::string&) {};
  FakeDriver counting = MakeDriver(task, 3);
  ASSERT_TRUE(RunEval(task, ByteTokenizer(), &counting, ignore).ok());
  for (int64_t call = 0; call < counting.calls(); ++call) {
    FakeDriver driver = MakeDriver(task, 3);
    driver.FailAt(call);
    const auto result = RunEval(task, ByteTokenizer(), &driver, ignore);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal) << call;
    EXPECT_EQ(driver.calls(), call + 1);
  }
}

TEST(EvalRunTest, LogitsThatAreNotFiniteNameTheCell) {
  const EvalTask task = MakeTask({.policies = {"none"}, .ratios = {4}});
  FakeDriver driver = MakeDriver(task, 8);
  driver.PoisonAt(7, 2);
  const auto result = RunEval(task, ByteTokenizer(), &driver, [](double, const std::string&) {});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("random@4"));
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("token 607"));
}

TEST(EvalReportTest, JsonHasTheFieldsOfEveryCell) {
  const EvalResult result =
      Evaluate(MakeTask({.presets = {"balanced"}, .policies = {"similarity"}, .ratios = {2, 4}}));
  const auto json = EvalJson(result);
  ASSERT_EQ(json["cells"].size(), result.cells.size());
  for (const auto& cell : json["cells"]) {
    for (const char* field :
         {"policy", "ratio", "bytes_ratio", "ppl_delta_pct", "ppl_delta_ci", "kld_mean", "kld_p99",
          "top1", "needle", "lookup", "swaps_accepted", "swaps_refused", "hit_ratio", "seconds"}) {
      EXPECT_TRUE(cell.contains(field)) << field;
      EXPECT_FALSE(cell[field].is_null()) << field;
    }
    EXPECT_EQ(cell["ppl_delta_ci"].size(), 2u);
  }
  EXPECT_EQ(json["cells"][0]["cell"], "balanced");
  EXPECT_EQ(json["cells"][0]["preset"], "balanced");
  EXPECT_EQ(json["cells"][1]["policy"], "similarity");
  EXPECT_EQ(json["cells"][1]["ratio"], 2.0);
  EXPECT_EQ(json["reference"]["needle"], 1.0);
}

TEST(EvalReportTest, WhatWasNotMeasuredIsNullAndHasNoColumn) {
  EvalTaskOptions options = kOptions;
  options.needle = options.lookup = options.generate_tokens = 0;
  const EvalResult result = Evaluate(MakeTask({.presets = {"off"}}, options));
  const auto json = EvalJson(result);
  for (const char* field : {"needle", "lookup", "distinct3"}) {
    EXPECT_TRUE(json["cells"][0][field].is_null()) << field;
    EXPECT_TRUE(json["reference"][field].is_null()) << field;
  }
  for (const char* column : {"needle", "look-up", "distinct"}) {
    EXPECT_THAT(EvalTable(result), Not(HasSubstr(column)));
  }
}

TEST(EvalReportTest, TheTableHasALinePerCell) {
  const EvalResult result = Evaluate(MakeTask({.policies = {"none"}, .ratios = {4}}));
  const std::string table = EvalTable(result);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 5);
  for (const char* text : {"full cache", "none@4", "random@4 (floor)", "6/6", "bytes ratio"}) {
    EXPECT_THAT(table, HasSubstr(text));
  }
}

TEST(EvalReportTest, ThePageStandsAloneAndBelievesNobody) {
  EvalResult result = Evaluate(MakeTask({.policies = {"none"}, .ratios = {2, 4}}));
  result.model = "<script>alert(1)</script>";
  result.texts = {"a&b\".txt"};
  const std::string html = EvalHtml(result);
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, HasSubstr("a&amp;b&quot;.txt"));
  for (const char* outside : {"src=", "href=", "url(", "@import"}) {
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  }
  // Divergence, perplexity, top-1, needle, look-up.
  size_t charts = 0;
  const std::string chart = "role=\"img\"";
  for (size_t at = html.find(chart); at != std::string::npos; at = html.find(chart, at + 1)) {
    ++charts;
  }
  EXPECT_EQ(charts, 5u);
  EXPECT_THAT(html, HasSubstr("random@2 (floor)"));
}

}  // namespace
}  // namespace condense
