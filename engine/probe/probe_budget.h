#ifndef CONDENSE_ENGINE_PROBE_PROBE_BUDGET_H_
#define CONDENSE_ENGINE_PROBE_PROBE_BUDGET_H_

// How many tokens of a step probes may take.

#include <cstdint>

#include "absl/time/time.h"
#include "engine/scheduler.h"

namespace condense {

// Probes get a share of the time of steps that requests run in. What a token costs is learned from
// how steps lengthen with their tokens, nobody can measure the step without the probe; in a step of
// few tokens it counts as much as each of them. Threads: thread-compatible.
class ProbeBudget {
 public:
  // `share` of step time, in [0, 1).
  explicit ProbeBudget(double share) : share_(share) {}

  // A step of `tokens`, `probed` of them in the background, took so long.
  void Stepped(absl::Duration time, int32_t tokens, int32_t probed);

  // Of the next step. Alone: as many as take kLongestAlone, because a request may come meanwhile.
  BackgroundTokens Allowed() const;

  // What the probes took, by estimate; alone or not.
  absl::Duration spent() const { return spent_; }

  static constexpr absl::Duration kLongestAlone = absl::Milliseconds(15);
  static constexpr int32_t kMostAlone = 64;

 private:
  void Learn(double seconds, double tokens);
  double LearnedCost() const;

  const double share_;
  double credit_ = 0.0;  // seconds
  double cost_ = 0.0;    // seconds per token, in a step like the last one; 0: not known
  // Sums over steps, older ones fading: of 1, tokens, seconds, and their products.
  double weight_ = 0.0, x_ = 0.0, y_ = 0.0, xx_ = 0.0, xy_ = 0.0;
  absl::Duration spent_;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_PROBE_PROBE_BUDGET_H_
