#ifndef CONDENSE_TESTS_SUPPORT_UNIT_FIXTURE_H_
#define CONDENSE_TESTS_SUPPORT_UNIT_FIXTURE_H_

// Makes units for policy tests and benches: entries, evidence and keys that look like a model's.

#include <cstdint>
#include <vector>

#include "cache/policy.h"

namespace condense {

// Owns what a UnitView borrows. The vectors may be changed freely before View().
struct UnitFixture {
  UnitView View() const;

  std::vector<int32_t> positions;  // [n]
  std::vector<float> biases;       // [n] or empty
  std::vector<int32_t> counts;     // [n] or empty
  Protection protection;
  UnitEvidence evidence;    // [n]
  std::vector<float> keys;  // [n, D]
  int32_t head_dim = 64;
};

// n entries at positions 0, 1, …; the newest one is the last token. Probabilities are heavy-tailed,
// steps those of a prompt. Keys share a direction (pair cosine about 0.78) and a few topics (cosine
// about 0.9 inside one).
UnitFixture MakeUnit(int32_t num_entries, int32_t head_dim, uint64_t seed);

// Formats as presets use them, widest first: 16/16, 8/8, 6/4, 4/4 for this head size.
std::vector<FormatCost> UsualFormats(int32_t head_dim);

}  // namespace condense

#endif  // CONDENSE_TESTS_SUPPORT_UNIT_FIXTURE_H_
