#include "tools/eval/eval_report.h"

#include <optional>
#include <utility>

#include "tools/eval/eval_columns.h"
#include "tools/text_table.h"

namespace condense {
namespace {

using Json = nlohmann::ordered_json;

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

}  // namespace

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
