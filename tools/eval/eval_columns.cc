#include "tools/eval/eval_columns.h"

#include "absl/strings/str_format.h"

namespace condense {
namespace {

std::string RecallText(const RecallScore& score) {
  return absl::StrFormat("%d/%d", score.right, score.solved);
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

}  // namespace condense
