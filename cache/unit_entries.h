#ifndef CONDENSE_CACHE_UNIT_ENTRIES_H_
#define CONDENSE_CACHE_UNIT_ENTRIES_H_

// The entries of one unit that a compaction job may change, as plain facts: positions, biases,
// counts, and the rule that keeps some of them as they are.

#include <algorithm>
#include <cstdint>
#include <span>

namespace condense {

// Which positions no plan may touch: the sinks at the start of a sequence and its newest tokens.
struct Protection {
  int32_t num_sinks = 4;
  int32_t window_tokens = 64;  // ranked but not compacted
  int32_t grace_tokens = 16;   // not even ranked yet
  int32_t end_position = 0;    // of the token to come: the newest entry stands one before it

  bool Covers(int32_t position) const {
    const int64_t age = int64_t{end_position} - position;  // 1 for the newest entry
    return position < num_sinks || age <= std::max(window_tokens, grace_tokens);
  }
};

// Borrowed, immutable while a plan is made. Entry i of all spans is one entry; n entries.
struct UnitEntries {
  std::span<const int32_t> positions;  // [n], ascending, not negative
  std::span<const float> biases;       // [n], or empty: all 0
  std::span<const int32_t> counts;     // [n], or empty: all 1
  Protection protection;

  int32_t size() const { return static_cast<int32_t>(positions.size()); }
  float bias(int32_t i) const { return biases.empty() ? 0.0f : biases[i]; }
  int32_t count(int32_t i) const { return counts.empty() ? 1 : counts[i]; }
  bool is_protected(int32_t i) const { return protection.Covers(positions[i]); }
};

}  // namespace condense

#endif  // CONDENSE_CACHE_UNIT_ENTRIES_H_
