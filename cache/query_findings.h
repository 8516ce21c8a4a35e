#ifndef CONDENSE_CACHE_QUERY_FINDINGS_H_
#define CONDENSE_CACHE_QUERY_FINDINGS_H_

// What queries found in a unit's list.

#include <cstdint>

#include "cache/float_array.h"

namespace condense {

// R rows: queries times the H/G heads of the group, query by query; n entries of the list.
struct QueryFindings {
  int32_t head_dim = 0;     // D
  int32_t num_entries = 0;  // n
  FloatArray out;           // [R, D], or empty
  FloatArray log_sum_exp;   // [R]
  FloatArray mass;          // [R, n]: softmax probabilities; or empty

  int32_t num_rows() const { return static_cast<int32_t>(log_sum_exp.size()); }
  const float* out_of(int32_t row) const { return out.data() + int64_t{row} * head_dim; }
  const float* mass_of(int32_t row) const { return mass.data() + int64_t{row} * num_entries; }
};

// The same queries over both lists as one, of which `rest` counts as a single entry at the end of
// `part`: its outputs, and the sum of its masses.
// REQUIRES: the same queries; outputs of both, masses of `part`; one of them has an entry.
void AddAsOneEntry(const QueryFindings& rest, QueryFindings* part);

}  // namespace condense

#endif  // CONDENSE_CACHE_QUERY_FINDINGS_H_
