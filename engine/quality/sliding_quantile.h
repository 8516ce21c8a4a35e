#ifndef CONDENSE_ENGINE_QUALITY_SLIDING_QUANTILE_H_
#define CONDENSE_ENGINE_QUALITY_SLIDING_QUANTILE_H_

// Quantiles of what was measured lately, with what chance alone can do to them.
// docs/guardrails.md, "Quantiles".

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "engine/quality/bucket_ring.h"

namespace condense {

// How values are told apart: bins of equal width from `lowest` to `highest`, or, where `geometric`,
// bins of equal ratio. A quantile is off by less than the bin that it lies in; values outside
// count in the first or last bin.
struct QuantileScale {
  double lowest = 0;
  double highest = 1;
  int32_t num_bins = 200;
  bool geometric = false;

  static QuantileScale Share() { return {}; }  // of 1, to 0.005
  // Seconds from 1 us to 1000 s, to 4 %.
  static QuantileScale Latency() { return {1e-6, 1e3, 528, true}; }
};

// Threads: thread-compatible. Cost: Add is O(1) amortized, the questions O(num_buckets * num_bins);
// memory is that many counters of 4 bytes.
class SlidingQuantile {
 public:
  // REQUIRES: finite lowest < highest, 0 < lowest if geometric; num_bins >= 1.
  SlidingQuantile(absl::Duration window, const QuantileScale& scale, int32_t num_buckets = 12);

  // False, and nothing changes, if the value is not finite or the time before the window.
  bool Add(absl::Time time, double value);
  int64_t Count(absl::Time now) const;
  // The smallest sample that `level` of all do not exceed, within its bin. REQUIRES: level in
  // (0, 1). Nothing if the window that ends at `now` is empty.
  std::optional<double> Quantile(absl::Time now, double level) const;
  // One-sided and distribution-free, from order statistics of independent samples: the true
  // quantile is above (below) the bound with at least `confidence`. Nothing if there are too few
  // samples for that.
  std::optional<double> LowerBound(absl::Time now, double level, double confidence) const;
  std::optional<double> UpperBound(absl::Time now, double level, double confidence) const;
  void Clear() { ring_.Clear(); }

 private:
  struct Bucket {
    std::vector<uint32_t> counts;  // [num_bins]
    double smallest = 0;           // of the samples, if any
    double largest = 0;
    int64_t count = 0;
  };
  static Bucket Empty(const QuantileScale& scale);

  Bucket Joined(absl::Time now) const;
  int32_t BinOf(double value) const;
  double Edge(double bin) const;  // where `bin` begins
  // The sample of this rank, from 1.
  double ValueAtRank(const Bucket& all, int64_t rank) const;
  // 0: there is no such rank.
  using RankOf = int64_t (*)(int64_t count, double level, double confidence);
  std::optional<double> Bound(absl::Time now, RankOf rank_of, double level,
                              double confidence) const;

  const QuantileScale scale_;
  BucketRing<Bucket> ring_;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_QUALITY_SLIDING_QUANTILE_H_
