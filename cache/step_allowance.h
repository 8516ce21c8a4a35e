#ifndef CONDENSE_CACHE_STEP_ALLOWANCE_H_
#define CONDENSE_CACHE_STEP_ALLOWANCE_H_

// How much time the compaction worker may take out of a step.

#include <chrono>

namespace condense {

struct PaceLimits {
  std::chrono::nanoseconds per_step = std::chrono::microseconds(1500);  // at least, of every step
  double share = 0.1;  // of a step's time, where that is more; 1: no limit
};

// The arithmetic of CompactionPace, with times given from outside. Threads: thread-compatible.
class StepAllowance {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::nanoseconds;

  explicit StepAllowance(const PaceLimits& limits) : limits_(limits) {}

  // Without limit until the first step begins.
  void Lift();
  // Allowed of this step by time t: the larger of `per_step` and `share` of the time from `now` to
  // t, and `extra`. What was spent beyond the last step's allowance counts to this one; returns it.
  Duration Begin(Time now, Duration extra);
  void Spend(Duration spent) { spent_ += spent; }
  // From when on more may be spent in this step: Time::min() for at once, Time::max() for never.
  Time Next() const;

 private:
  Duration Allowed(Time now) const;

  const PaceLimits limits_;
  bool limited_ = false;
  Time began_;
  Duration extra_{0}, spent_{0};
};

}  // namespace condense

#endif  // CONDENSE_CACHE_STEP_ALLOWANCE_H_
