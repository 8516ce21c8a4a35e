#ifndef CONDENSE_SERVER_GUARD_FLAGS_H_
#define CONDENSE_SERVER_GUARD_FLAGS_H_

// The flags of the guardrails.

#include "absl/status/status.h"
#include "engine/config.h"

namespace condense {

// Sets EngineConfig::guard and guard_limits. INVALID_ARGUMENT naming flag and value: an SLO that is
// none, that no guard would keep, or that binds what another flag sets too. REQUIRES: flags are
// parsed.
absl::Status FillGuard(EngineConfig* config);

}  // namespace condense

#endif  // CONDENSE_SERVER_GUARD_FLAGS_H_
