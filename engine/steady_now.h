#ifndef CONDENSE_ENGINE_STEADY_NOW_H_
#define CONDENSE_ENGINE_STEADY_NOW_H_

#include <chrono>

#include "absl/time/time.h"

namespace condense {

// Of the steady clock: windows and dwells must not depend on who sets the other one. Comparable
// with its own kind alone.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace condense

#endif  // CONDENSE_ENGINE_STEADY_NOW_H_
