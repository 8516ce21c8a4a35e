#ifndef CONDENSE_TOOLS_EVAL_EVAL_CELLS_H_
#define CONDENSE_TOOLS_EVAL_EVAL_CELLS_H_

// The compressions that an evaluation compares.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cache/compression.h"

namespace condense {

// One row of the result.
struct EvalCell {
  std::string name;    // "balanced" of a preset, "similarity@4" of a policy at a ratio
  bool floor = false;  // not asked for: what any policy must beat
  Compression compression;
};

struct EvalCellChoice {
  std::vector<std::string> presets;
  // Every policy at every ratio. Only ratios: policy "balanced"; only policies: ratio 4. Nothing at
  // all: every preset but "off".
  std::vector<std::string> policies;
  std::vector<double> ratios;
  bool floors = true;
};

// Presets, policies, then the floors: "random" and "window" at every ratio above 1 that occurs.
// Nothing twice.
// Errors of MakeCompression, naming the cell.
absl::StatusOr<std::vector<EvalCell>> MakeEvalCells(const EvalCellChoice& choice);

}  // namespace condense

#endif  // CONDENSE_TOOLS_EVAL_EVAL_CELLS_H_
