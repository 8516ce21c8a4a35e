#ifndef CONDENSE_TOOLS_STATUS_VIEW_H_
#define CONDENSE_TOOLS_STATUS_VIEW_H_

// What `condense status --watch` shows at one moment.

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "tools/server_status.h"

namespace condense {

// Lines of at most `width` cells without control characters. REQUIRES: width >= 1.
std::string StatusView(const ServerStatus& status, const std::string& address, absl::Time now,
                       int width);

// The arena in `width` cells: # used, + staging, = slack, . free.
std::string ArenaBar(const v1::GetLoadResponse& load, int width);

}  // namespace condense

#endif  // CONDENSE_TOOLS_STATUS_VIEW_H_
