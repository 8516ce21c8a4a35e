#include "tools/eval/eval_cells.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

// What policies and floors take their formats and limits from.
constexpr char kBasePreset[] = "balanced";
constexpr char kDefaultPolicy[] = "balanced";
constexpr double kDefaultRatio = 4.0;
constexpr const char* kFloors[] = {"random", "window"};

class CellList {
 public:
  absl::Status AddPreset(const std::string& preset) {
    return Add({.name = preset}, MakeCompression(preset));
  }
  absl::Status AddPolicy(const std::string& policy, double ratio, bool floor) {
    return Add({.name = absl::StrFormat("%s@%g", policy, ratio), .floor = floor},
               MakeCompression(kBasePreset, policy, ratio));
  }
  // Ratios above 1 that occur, ascending.
  std::set<double> Ratios() const {
    std::set<double> ratios;
    for (const EvalCell& cell : cells_) {
      if (cell.compression.active() && cell.compression.ratio > 1.0) {
        ratios.insert(cell.compression.ratio);
      }
    }
    return ratios;
  }
  std::vector<EvalCell> Take() { return std::move(cells_); }

 private:
  absl::Status Add(EvalCell cell, absl::StatusOr<Compression> compression) {
    if (!compression.ok()) {
      return absl::Status(
          compression.status().code(),
          absl::StrFormat("cell %s: %s", cell.name, std::string(compression.status().message())));
    }
    const bool known = std::any_of(cells_.begin(), cells_.end(),
                                   [&](const EvalCell& other) { return other.name == cell.name; });
    if (known) return absl::OkStatus();
    cell.compression = *std::move(compression);
    cells_.push_back(std::move(cell));
    return absl::OkStatus();
  }

  std::vector<EvalCell> cells_;
};

EvalCellChoice WithDefaults(EvalCellChoice choice) {
  if (choice.policies.empty() && !choice.ratios.empty()) choice.policies = {kDefaultPolicy};
  if (choice.ratios.empty()) choice.ratios = {kDefaultRatio};
  if (choice.policies.empty() && choice.presets.empty()) {
    for (const std::string& preset : PresetNames()) {
      if (preset != "off") choice.presets.push_back(preset);
    }
  }
  return choice;
}

}  // namespace

absl::StatusOr<std::vector<EvalCell>> MakeEvalCells(const EvalCellChoice& asked) {
  const EvalCellChoice choice = WithDefaults(asked);
  CellList cells;
  for (const std::string& preset : choice.presets) RETURN_IF_ERROR(cells.AddPreset(preset));
  for (const std::string& policy : choice.policies) {
    for (const double ratio : choice.ratios) {
      RETURN_IF_ERROR(cells.AddPolicy(policy, ratio, /*floor=*/false));
    }
  }
  if (!choice.floors) return cells.Take();
  for (const double ratio : cells.Ratios()) {
    for (const char* policy : kFloors) {
      RETURN_IF_ERROR(cells.AddPolicy(policy, ratio, /*floor=*/true));
    }
  }
  return cells.Take();
}

}  // namespace condense
