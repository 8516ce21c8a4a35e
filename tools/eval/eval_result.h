#ifndef CONDENSE_TOOLS_EVAL_EVAL_RESULT_H_
#define CONDENSE_TOOLS_EVAL_EVAL_RESULT_H_

// What an evaluation found.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/eval/eval_cells.h"
#include "tools/eval/quality_stats.h"

namespace condense {

struct RecallScore {
  int32_t asked = 0;
  int32_t solved = 0;  // of those, by the full cache: only these count
  int32_t right = 0;   // of the solved ones, by the cell
  // Nothing where the full cache solved none.
  std::optional<double> share() const {
    if (solved == 0) return std::nullopt;
    return static_cast<double>(right) / solved;
  }
};

struct CellResult {
  EvalCell cell;
  Quality quality;
  RecallScore needle, lookup;
  double distinct3 = 1.0;  // mean over documents, of a greedy continuation
  // Of the documents when their last token had been scored; questions do not count here.
  int64_t bytes = 0;
  int64_t bytes_16bit = 0;
  int64_t swaps_accepted = 0;
  int64_t swaps_refused = 0;
  double hit_ratio = 1.0;  // mean over swaps
  double seconds = 0.0;    // of compaction
  double bytes_ratio() const {
    return bytes > 0 ? static_cast<double>(bytes_16bit) / static_cast<double>(bytes) : 1.0;
  }
};

struct EvalResult {
  std::string model;   // file name
  std::string device;  // "2 threads, avx512-vnni"
  std::vector<std::string> texts;
  int64_t context_tokens = 0;
  int64_t score_tokens = 0;  // per document
  int64_t documents = 0;
  int64_t generate_tokens = 0;  // 0: distinct3 was not measured
  double seconds = 0.0;         // in all
  CellResult reference;         // the full cache
  std::vector<CellResult> cells;
};

}  // namespace condense

#endif  // CONDENSE_TOOLS_EVAL_EVAL_RESULT_H_
