#ifndef CONDENSE_ENGINE_QUALITY_GUARD_REPORT_H_
#define CONDENSE_ENGINE_QUALITY_GUARD_REPORT_H_

// What one guardrail last read and made of it, as others are told.

#include <array>
#include <optional>

#include "engine/quality/guard_tracker.h"
#include "engine/quality/guardrail_reading.h"

namespace condense {

struct GuardReport {
  std::optional<Reading> reading;  // of the last evaluation window; nothing: none was made
  GuardLevel level = GuardLevel::kClear;
};

// In the order of Guard.
using GuardReports = std::array<GuardReport, kNumGuards>;

}  // namespace condense

#endif  // CONDENSE_ENGINE_QUALITY_GUARD_REPORT_H_
