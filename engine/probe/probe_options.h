#ifndef CONDENSE_ENGINE_PROBE_PROBE_OPTIONS_H_
#define CONDENSE_ENGINE_PROBE_PROBE_OPTIONS_H_

// How much is spent on measuring quality.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace condense {

struct ProbeOptions {
  // Of requests that may be computed again; 0: none.
  double share = 0.1;
  // Of the time of steps that requests run in; an idle engine has no limit.
  double step_share = 0.02;
  absl::Duration canary_interval = absl::Minutes(2);  // 0: no canaries
  int32_t canary_tokens = 768;                        // of a canary's prompt
  // Between probes of the noise floor: it hardly moves.
  absl::Duration floor_interval = absl::Minutes(10);

  // INVALID_ARGUMENT naming the field, its value and its limits.
  absl::Status Validate() const;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_PROBE_PROBE_OPTIONS_H_
