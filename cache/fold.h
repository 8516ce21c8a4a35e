#ifndef CONDENSE_CACHE_FOLD_H_
#define CONDENSE_CACHE_FOLD_H_

// The formulas of folding and averaging, and what they make of real keys and values. Every merge of
// whichever policy goes through here.
//
// a: observed mass of an entry (mean softmax probability), b: its bias, p: position, k, v: key and
// value, R(d): the turn by d positions.
//   fold i into j:  v_j <- (a_j v_j + a_i v_i) / (a_j + a_i);  b_j <- b_j + ln((a_j + a_i) / a_j)
//   average of C:   p = sum w p_i, k = sum w_i R(p - p_i) k_i with w_i = exp(b_i) / sum exp(b);
//                   v = sum a_i v_i / sum a;  b = ln sum exp(b_i)

#include <cstdint>
#include <span>

#include "cache/merge_plan.h"
#include "cache/rope_table.h"

namespace condense {

// The bias with which an entry of bias `bias` and mass `own_mass` weighs `total_mass`.
// REQUIRES: masses > 0.
double FoldedBias(double bias, double own_mass, double total_mass);
// ln sum exp(b_i). REQUIRES: not empty.
double AveragedBias(std::span<const float> biases);

// Keys and values of a source range, as attention reads them: keys [n, D] at their positions,
// values [n, D].
struct EntryVectors {
  std::span<const int32_t> positions;  // [n]
  const float* keys = nullptr;
  const float* values = nullptr;
  int32_t head_dim = 0;  // D
};

// Writes key[D] and value[D] of one group of the plan. A lone entry and the key of a pivot come out
// bit for bit. REQUIRES: the plan is valid; rope knows turns as long as the group is wide.
void BuildEntry(const MergePlan& plan, const MergeGroup& group, const EntryVectors& source,
                const RopeTable& rope, float* key, float* value);

}  // namespace condense

#endif  // CONDENSE_CACHE_FOLD_H_
