#ifndef CONDENSE_ENGINE_QUALITY_SLO_H_
#define CONDENSE_ENGINE_QUALITY_SLO_H_

// Guardrails bound to a service level objective. docs/guardrails.md, "Service level objectives".

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/quality/guardrail_limits.h"

namespace condense {

// One objective: a guardrail's limit and, where given, the window over which it is read.
struct SloTerm {
  Guard guard = Guard::kHitRatio;
  double limit = 0;  // in the guardrail's unit
  std::optional<absl::Duration> window;
};

// What a term calls the guardrail: its label, with "_p99" where that is what it limits.
std::string SloName(Guard guard);

// "ttft_p99<=500ms, drift<=1% over 30m, canary>=0.95": terms between commas, none for an empty
// text. INVALID_ARGUMENT with the term, its value and what is allowed: an unknown or repeated name,
// the sign of the other direction, a value or window that is none or out of range, anything else.
absl::StatusOr<std::vector<SloTerm>> ParseSlo(std::string_view text);

// Sets limit and window of the guardrail. Its warning moves along: as far from the limit, in
// proportion, as by default where low values are good (4/5 of it where there is no default); half
// way from the limit to 1 where high ones are. REQUIRES: `term` is ParseSlo's.
void BindSlo(const SloTerm& term, GuardrailLimits* limits);

}  // namespace condense

#endif  // CONDENSE_ENGINE_QUALITY_SLO_H_
