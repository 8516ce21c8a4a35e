#include "engine/quality/memory_fluctuation.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace condense {

std::optional<double> MemoryFluctuation::Observe(const MemoryStep& step) {
  const double held =
      static_cast<double>(step.used_bytes) + static_cast<double>(step.staging_bytes);
  // What was held before the very first step is not known.
  grown_ += begun_ ? static_cast<double>(step.grown_bytes) : 0;
  const double own = held - grown_;
  if (!begun_) first_ = peak_ = trough_ = own;
  begun_ = true;
  peak_ = std::max(peak_, own);
  trough_ = std::min(trough_, own);
  held_ = held_ || held > 0;
  if (!step.cycle_end) return std::nullopt;
  CHECK_GT(step.arena_bytes, 0);
  std::optional<double> fluctuation;
  if (held_) {
    const double moved = peak_ - trough_ - std::fabs(own - first_);
    fluctuation = moved / static_cast<double>(step.arena_bytes);
  }
  first_ = peak_ = trough_ = held;
  grown_ = 0;
  held_ = false;
  return fluctuation;
}

}  // namespace condense
