#include "cache/step_allowance.h"

#include <algorithm>

namespace condense {
namespace {

// Beyond this nobody waits for a share; it also keeps the sum within the clock.
constexpr std::chrono::hours kNever{1};

}  // namespace

void StepAllowance::Lift() {
  limited_ = false;
  spent_ = Duration(0);
}

StepAllowance::Duration StepAllowance::Begin(Time now, Duration extra) {
  spent_ = limited_ ? std::max(spent_ - Allowed(now), Duration(0)) : Duration(0);
  limited_ = limits_.share < 1.0;
  began_ = now;
  extra_ = extra;
  return spent_;
}

StepAllowance::Duration StepAllowance::Allowed(Time now) const {
  const auto by_share = std::chrono::duration_cast<Duration>(limits_.share * (now - began_));
  return std::max(limits_.per_step, by_share) + extra_;
}

StepAllowance::Time StepAllowance::Next() const {
  if (!limited_ || spent_ < limits_.per_step + extra_) return Time::min();
  const Duration beyond = spent_ - extra_;
  if (limits_.share * std::chrono::duration<double>(kNever) <= beyond) return Time::max();
  return began_ + std::chrono::duration_cast<Duration>(beyond / limits_.share);
}

}  // namespace condense
