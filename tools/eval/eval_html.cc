#include "tools/eval/eval_html.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/eval/eval_columns.h"
#include "tools/eval/line_chart.h"
#include "tools/format.h"

namespace condense {
namespace {

constexpr char kStyle[] = R"(
:root { color-scheme: light dark; --back: #ffffff; --text: #1c2128; --faint: #d5d9df; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171c; --text: #e4e7eb; --faint: #3a414b; }
}
body { margin: 2rem auto; max-width: 76rem; padding: 0 1rem; background: var(--back);
       color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin-bottom: 0.2rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1.5rem;
          margin: 1.5rem 0; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: 0.25rem 0.7rem; border-bottom: 1px solid var(--faint); text-align: right; }
th:first-child, td:first-child { text-align: left; }
tr.floor { opacity: 0.65; }
p { max-width: 60rem; }
)";

constexpr char kNotes[] =
    "Every number compares a compacted cache with the full one on the same tokens, fed one by one "
    "through the decode path. Bytes ratio: bytes of the same tokens in 16 bits over bytes held, "
    "sliding windows included alike on both sides. dPPL: change of perplexity, with a 95% interval "
    "from a paired bootstrap over blocks of tokens. KLD: divergence of the next token's "
    "distribution from the full cache's, in nats. Needle and look-up: of the questions that the "
    "full cache answers, those that are still answered when the question comes after compaction. "
    "Grey and dashed: floors; curves of perplexity are cut off where they leave the others far "
    "behind.";

using Measure = std::optional<ChartPoint> (*)(const CellResult&);

struct Panel {
  ChartFrame frame;
  Measure measure;
};

std::optional<ChartPoint> Recall(const CellResult& cell, const RecallScore& score) {
  const std::optional<double> share = score.share();
  if (!share.has_value()) return std::nullopt;
  return ChartPoint{.x = cell.bytes_ratio(), .y = 100.0 * *share};
}

std::vector<Panel> Panels(const EvalResult& result) {
  constexpr char kX[] = "bytes ratio (16 bits = 1)";
  std::vector<Panel> panels;
  panels.push_back({{.title = "Divergence from the full cache",
                     .x_label = kX,
                     .y_label = "KLD, nats per token",
                     .log_y = true,
                     .x_start = 1.0},
                    [](const CellResult& cell) -> std::optional<ChartPoint> {
                      return ChartPoint{.x = cell.bytes_ratio(), .y = cell.quality.kld_mean};
                    }});
  panels.push_back({{.title = "Perplexity",
                     .x_label = kX,
                     .y_label = "change, %",
                     .x_start = 1.0,
                     .cut_background = true,
                     .mark = 0.0,
                     .mark_label = "full cache"},
                    [](const CellResult& cell) -> std::optional<ChartPoint> {
                      return ChartPoint{.x = cell.bytes_ratio(),
                                        .y = cell.quality.ppl_delta_pct,
                                        .interval = cell.quality.ppl_delta_ci};
                    }});
  const ChartFrame percent{
      .x_label = kX, .x_start = 1.0, .y_limit = 100.0, .mark = 100.0, .mark_label = "full cache"};
  const auto add_percent = [&](const std::string& title, const std::string& label,
                               Measure measure) {
    Panel panel{percent, measure};
    panel.frame.title = title;
    panel.frame.y_label = label;
    panels.push_back(std::move(panel));
  };
  add_percent("Same most likely token", "top-1 agreement, %",
              [](const CellResult& cell) -> std::optional<ChartPoint> {
                return ChartPoint{.x = cell.bytes_ratio(), .y = 100.0 * cell.quality.top1};
              });
  if (result.reference.needle.solved > 0) {
    add_percent("Needle, asked after compaction",
                absl::StrFormat("answered, %% of %d", result.reference.needle.solved),
                [](const CellResult& cell) { return Recall(cell, cell.needle); });
  }
  if (result.reference.lookup.solved > 0) {
    add_percent("Key-value look-up, asked after compaction",
                absl::StrFormat("answered, %% of %d", result.reference.lookup.solved),
                [](const CellResult& cell) { return Recall(cell, cell.lookup); });
  }
  return panels;
}

std::string SeriesOf(const CellResult& cell) {
  const Compression& compression = cell.cell.compression;
  return compression.preset == "custom" ? compression.policy : "presets";
}

// One series per policy, in the order of their first cell, floors last.
std::vector<ChartSeries> MakeSeries(const EvalResult& result, Measure measure) {
  std::vector<ChartSeries> all;
  for (const CellResult& cell : result.cells) {
    const std::string name = SeriesOf(cell);
    const auto same = [&](const ChartSeries& series) { return series.name == name; };
    auto series = std::find_if(all.begin(), all.end(), same);
    if (series == all.end()) {
      all.push_back({.name = name, .background = name == "random" || name == "window"});
      series = all.end() - 1;
    }
    std::optional<ChartPoint> point = measure(cell);
    if (!point.has_value()) continue;
    point->note = absl::StrFormat("%s: %.2fx, %.4g", cell.cell.name, point->x, point->y);
    series->points.push_back(*std::move(point));
  }
  std::stable_partition(all.begin(), all.end(),
                        [](const ChartSeries& series) { return !series.background; });
  for (ChartSeries& series : all) {
    std::stable_sort(series.points.begin(), series.points.end(),
                     [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
  }
  return all;
}

std::string HtmlTable(const EvalResult& result) {
  const EvalColumns columns = MakeEvalColumns(result);
  std::string out = "<div class=\"table\"><table>\n<thead><tr>";
  for (const std::string& name : columns.header) out += "<th>" + EscapeXml(name) + "</th>";
  out += "</tr></thead>\n<tbody>\n";
  for (size_t r = 0; r < columns.rows.size(); ++r) {
    const bool floor = r > 0 && result.cells[r - 1].cell.floor;
    out += floor ? "<tr class=\"floor\">" : "<tr>";
    for (const std::string& cell : columns.rows[r]) out += "<td>" + EscapeXml(cell) + "</td>";
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

}  // namespace

std::string EvalHtml(const EvalResult& result) {
  std::string charts;
  for (const Panel& panel : Panels(result)) {
    charts += "<div>" + DrawLineChart(panel.frame, MakeSeries(result, panel.measure)) + "</div>\n";
  }
  const std::string settings =
      absl::StrFormat("%s on %s; %d documents of %d + %d tokens from %s; %s in all.", result.model,
                      result.device, result.documents, result.context_tokens, result.score_tokens,
                      absl::StrJoin(result.texts, ", "), FormatSeconds(result.seconds));
  return absl::StrFormat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>Compaction of %s</title>\n<style>%s</style>\n</head>\n<body>\n"
      "<h1>What compaction costs</h1>\n<p>%s</p>\n<div class=\"charts\">\n%s</div>\n%s"
      "<p>%s</p>\n</body>\n</html>\n",
      EscapeXml(result.model), kStyle, EscapeXml(settings), charts, HtmlTable(result), kNotes);
}

}  // namespace condense
