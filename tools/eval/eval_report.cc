#include "tools/eval/eval_report.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "tools/eval/eval_columns.h"
#include "tools/format.h"
#include "tools/text_table.h"

namespace condense {
namespace {

using Json = nlohmann::ordered_json;

std::string RecallText(const RecallScore& score) {
  return absl::StrFormat("%d/%d", score.right, score.solved);
}

Json RecallJson(const RecallScore& score) {
  const std::optional<double> share = score.share();
  return share.has_value() ? Json(*share) : Json(nullptr);
}

Json CellJson(const CellResult& cell, const EvalResult& result) {
  const Compression& compression = cell.cell.compression;
  const Quality& q = cell.quality;
  return {{"cell", cell.cell.name},
          {"preset", compression.preset},
          {"policy", compression.policy},
          {"ratio", compression.ratio},
          {"floor", cell.cell.floor},
          {"bytes_ratio", cell.bytes_ratio()},
          {"bytes", cell.bytes},
          {"bytes_16bit", cell.bytes_16bit},
          {"tokens", q.tokens},
          {"ppl", q.ppl},
          {"ppl_delta_pct", q.ppl_delta_pct},
          {"ppl_delta_ci", {q.ppl_delta_ci.low, q.ppl_delta_ci.high}},
          {"kld_mean", q.kld_mean},
          {"kld_median", q.kld_median},
          {"kld_p99", q.kld_p99},
          {"top1", q.top1},
          {"needle", RecallJson(cell.needle)},
          {"needle_right", cell.needle.right},
          {"needle_solved", cell.needle.solved},
          {"needle_asked", cell.needle.asked},
          {"lookup", RecallJson(cell.lookup)},
          {"lookup_right", cell.lookup.right},
          {"lookup_solved", cell.lookup.solved},
          {"lookup_asked", cell.lookup.asked},
          {"distinct3", result.generate_tokens > 0 ? Json(cell.distinct3) : Json(nullptr)},
          {"swaps_accepted", cell.swaps_accepted},
          {"swaps_refused", cell.swaps_refused},
          {"hit_ratio", cell.hit_ratio},
          {"seconds", cell.seconds}};
}

std::vector<std::string> Row(const CellResult& cell, const EvalResult& result) {
  const Quality& q = cell.quality;
  std::vector<std::string> row = {
      cell.cell.name + (cell.cell.floor ? " (floor)" : ""),
      absl::StrFormat("%.2f", cell.bytes_ratio()),
      absl::StrFormat("%.3f", q.ppl),
      absl::StrFormat("%+.2f", q.ppl_delta_pct),
      absl::StrFormat("%+.2f to %+.2f", q.ppl_delta_ci.low, q.ppl_delta_ci.high),
      absl::StrFormat("%.4f", q.kld_mean),
      absl::StrFormat("%.4f", q.kld_p99),
      absl::StrFormat("%.1f", 100.0 * q.top1)};
  if (cell.needle.asked > 0) row.push_back(RecallText(cell.needle));
  if (cell.lookup.asked > 0) row.push_back(RecallText(cell.lookup));
  if (result.generate_tokens > 0) row.push_back(absl::StrFormat("%.2f", cell.distinct3));
  row.push_back(absl::StrFormat("%d/%d", cell.swaps_accepted, cell.swaps_refused));
  row.push_back(absl::StrFormat("%.3f", cell.hit_ratio));
  row.push_back(absl::StrFormat("%.2f", cell.seconds));
  return row;
}

}  // namespace

EvalColumns MakeEvalColumns(const EvalResult& result) {
  EvalColumns columns;
  columns.header = {"cell", "bytes ratio", "ppl", "dPPL %", "95%", "KLD", "KLD p99", "top-1 %"};
  if (result.reference.needle.asked > 0) columns.header.push_back("needle");
  if (result.reference.lookup.asked > 0) columns.header.push_back("look-up");
  if (result.generate_tokens > 0) columns.header.push_back("distinct-3");
  for (const char* name : {"swaps/refused", "hit ratio", "seconds"}) columns.header.push_back(name);
  columns.rows.push_back(Row(result.reference, result));
  for (const CellResult& cell : result.cells) columns.rows.push_back(Row(cell, result));
  return columns;
}

std::string EvalTable(const EvalResult& result) {
  EvalColumns columns = MakeEvalColumns(result);
  std::vector<TextTable::Align> align(columns.header.size(), TextTable::Align::kRight);
  align.front() = TextTable::Align::kLeft;
  TextTable table(std::move(align));
  table.Add(std::move(columns.header));
  for (std::vector<std::string>& row : columns.rows) table.Add(std::move(row));
  return table.ToString();
}

nlohmann::ordered_json EvalJson(const EvalResult& result) {
  Json cells = Json::array();
  for (const CellResult& cell : result.cells) cells.push_back(CellJson(cell, result));
  // NaN and infinities become null in nlohmann's output.
  return {{"model", result.model},
          {"device", result.device},
          {"texts", result.texts},
          {"context", result.context_tokens},
          {"score", result.score_tokens},
          {"documents", result.documents},
          {"generate", result.generate_tokens},
          {"seconds", result.seconds},
          {"reference", CellJson(result.reference, result)},
          {"cells", std::move(cells)}};
}

}  // namespace condense
