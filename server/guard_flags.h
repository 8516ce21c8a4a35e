#ifndef CONDENSE_SERVER_GUARD_FLAGS_H_
#define CONDENSE_SERVER_GUARD_FLAGS_H_

// The flags of the guardrails.

#include "engine/config.h"

namespace condense {

// Sets EngineConfig::guard and guard_limits. REQUIRES: flags are parsed.
void FillGuard(EngineConfig* config);

}  // namespace condense

#endif  // CONDENSE_SERVER_GUARD_FLAGS_H_
