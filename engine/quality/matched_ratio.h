#ifndef CONDENSE_ENGINE_QUALITY_MATCHED_RATIO_H_
#define CONDENSE_ENGINE_QUALITY_MATCHED_RATIO_H_

// How much slower compacted requests are than uncompressed ones of similar length.
// docs/guardrails.md, "Matched ratio".

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "engine/quality/guardrail_reading.h"
#include "engine/quality/sliding_mean.h"

namespace condense {

// Lengths are similar if their logarithms to base 2 round down to the same number. Threads:
// thread-compatible. Cost: Add is O(1) amortized, Estimate O(classes * buckets); memory is fixed.
class MatchedRatio {
 public:
  explicit MatchedRatio(absl::Duration window);

  // A request with a prompt of `length` tokens took `seconds`. False, and nothing changes, unless
  // both are positive, the time finite, and `time` in the window.
  bool Add(absl::Time time, bool compacted, int64_t length, double seconds);
  // Of the ratio, less 1. `samples` counts the pairs that the smaller side of each class allows.
  // Nothing if no class has at least two requests of both kinds.
  std::optional<Reading> Estimate(absl::Time now, double confidence) const;
  void Clear();

 private:
  struct Class {
    SlidingMean compacted;  // of the logarithm of seconds
    SlidingMean uncompressed;
  };
  std::vector<Class> classes_;  // by logarithm of the length; the last is for all beyond
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_QUALITY_MATCHED_RATIO_H_
