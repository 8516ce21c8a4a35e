#include "engine/quality/memory_fluctuation.h"

#include <algorithm>
#include <cmath>

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
  held_sum_ += held;
  ++steps_;
  if (!step.cycle_end) return std::nullopt;
  std::optional<double> fluctuation;
  if (held_sum_ > 0) {
    const double moved = peak_ - trough_ - std::fabs(own - first_);
    fluctuation = moved * static_cast<double>(steps_) / held_sum_;
  }
  first_ = peak_ = trough_ = held;
  grown_ = held_sum_ = 0;
  steps_ = 0;
  return fluctuation;
}

}  // namespace condense
