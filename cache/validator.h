#ifndef CONDENSE_CACHE_VALIDATOR_H_
#define CONDENSE_CACHE_VALIDATOR_H_

// Judges a back list beside the front list that it is to replace, by what the same queries find in
// both.

#include <cstdint>
#include <vector>

#include "cache/compaction_job.h"
#include "cache/merge_plan.h"
#include "cache/query_findings.h"

namespace condense {

// Where the front's entries are in the back.
struct SwapMap {
  static constexpr int32_t kDropped = -1;

  std::vector<int32_t> back_of;  // [front entries]: the back entry that took it up, or kDropped
  int32_t num_back = 0;          // entries of the back
};
// The entries [first, first + plan.num_entries) of the front become the plan's groups, the others
// stay. What stays may count as one entry, see AddAsOneEntry. REQUIRES: the plan is valid, the
// range lies within front_entries.
SwapMap MakeSwapMap(const MergePlan& plan, int32_t first, int32_t front_entries);

// Adds up what rows of queries say. Per row, F front and B back:
//   output error    |out_B - out_F| / |out_F|; 0 where both are zero
//   log-mass error  |log_sum_exp_B - log_sum_exp_F|
//   hit ratio       sum over back entries c of min(sum of mass_F over what became c, mass_B of c)
// A row with a number that is not finite makes both errors infinite for good.
// Threads: thread-compatible.
class Validator {
 public:
  explicit Validator(SwapMap map) : map_(std::move(map)), hits_(map_.num_back) {}

  // REQUIRES: the same rows on both sides, entries as the map has them.
  void Add(const QueryFindings& front, const QueryFindings& back);
  int32_t num_rows() const { return num_rows_; }
  // Means over the rows. Without any, that of a swap that changes nothing.
  SwapQuality Quality() const;

 private:
  double HitRatio(const float* front, const float* back);

  const SwapMap map_;
  std::vector<double> hits_;  // [num_back]
  int32_t num_rows_ = 0;
  double output_error_ = 0.0, log_mass_error_ = 0.0, hit_ratio_ = 0.0;  // sums
};

// Whether both errors are within their limits. NaN never is, neither as error nor as limit.
bool WithinLimits(const SwapQuality& quality, const SwapLimits& limits);

}  // namespace condense

#endif  // CONDENSE_CACHE_VALIDATOR_H_
