#ifndef CONDENSE_ENGINE_QUALITY_SLIDING_MEAN_H_
#define CONDENSE_ENGINE_QUALITY_SLIDING_MEAN_H_

// The weighted mean of what was measured lately, with what chance alone can do to it.
// docs/guardrails.md, "Means".

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "engine/quality/bucket_ring.h"

namespace condense {

// What is kept of a set of weighted samples: enough for the mean, its standard error, and to join
// two sets. Centred, so that the spread of large values close together survives.
class WeightedMoments {
 public:
  void Add(double value, double weight);
  void Join(const WeightedMoments& other);

  int64_t count() const { return count_; }
  double weight() const { return weight_; }
  double mean() const { return mean_; }
  double EffectiveCount() const;  // Kish: (sum w)^2 / sum w^2
  // Variance of the mean if samples are independent, each of any spread; 0 for less than 2 samples.
  double MeanVariance() const;

 private:
  int64_t count_ = 0;
  double weight_ = 0;         // sum w
  double mean_ = 0;           // sum w x / sum w
  double square_weight_ = 0;  // sum w^2
  double square_mean_ = 0;    // sum w^2 x / sum w^2
  double square_spread_ = 0;  // sum w^2 (x - square_mean)^2
  double cube_weight_ = 0;    // sum w^3
};

struct MeanEstimate {
  int64_t count = 0;           // samples
  double weight = 0;           // sum of their weights
  double mean = 0;             // weighted
  double effective_count = 0;  // equal samples that would tell as much
  // Absent for a single sample: it tells nothing about chance.
  std::optional<double> standard_error;

  // One-sided: the true mean is above (below) the bound with `confidence`. Student's t with
  // effective_count - 1 degrees of freedom; absent if that is less than 1.
  std::optional<double> LowerBound(double confidence) const;
  std::optional<double> UpperBound(double confidence) const;
  // The same for samples that are shares in [0, 1] and weighted by their trials, where a mean of 0
  // or 1 is not certain for having no spread: Clopper-Pearson with as many independent trials as
  // explain the standard error, or as samples where that is not known.
  double ShareLowerBound(double confidence) const;
  double ShareUpperBound(double confidence) const;

 private:
  double EffectiveTrials(double confidence) const;
};

// A sample is what is independent of other samples: one request, one unit, one canary; what it
// counts (its tokens, its facts) is the weight. Threads: thread-compatible. Cost: Add is O(1)
// amortized, Estimate O(num_buckets); memory does not depend on the rate.
class SlidingMean {
 public:
  explicit SlidingMean(absl::Duration window, int32_t num_buckets = 30)
      : ring_(window, num_buckets, WeightedMoments()) {}

  // False, and nothing changes, if the value is not finite, the weight not positive and finite, or
  // the time before the window.
  bool Add(absl::Time time, double value, double weight = 1);
  // Nothing if the window that ends at `now` is empty.
  std::optional<MeanEstimate> Estimate(absl::Time now) const;
  // Forgets all samples: what was measured before says nothing about what follows.
  void Clear() { ring_.Clear(); }

 private:
  BucketRing<WeightedMoments> ring_;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_QUALITY_SLIDING_MEAN_H_
