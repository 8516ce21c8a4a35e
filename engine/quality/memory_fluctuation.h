#ifndef CONDENSE_ENGINE_QUALITY_MEMORY_FLUCTUATION_H_
#define CONDENSE_ENGINE_QUALITY_MEMORY_FLUCTUATION_H_

// How much compaction makes the memory of the cache swing. docs/guardrails.md, "Memory
// fluctuation".

#include <cstdint>
#include <optional>

namespace condense {

// The cache after one step.
struct MemoryStep {
  int64_t used_bytes = 0;     // in blocks of requests
  int64_t staging_bytes = 0;  // in blocks that compaction is building
  // What requests themselves took in this step: blocks for their tokens, less the blocks of those
  // that ended or were preempted. May be negative.
  int64_t grown_bytes = 0;
  int64_t arena_bytes = 0;  // all that there is
  bool cycle_end = false;   // the last step of a cycle, after its swaps
};

// Per cycle: what of the held bytes moved and did not stay moved, as a share of the arena. With
// held = used + staging and own = held less all growth since the cycle began that is
// (peak - trough of own - |last - first of own|) / arena. A cycle begins where the one before
// ended, so a change between the two is seen by the later one. Threads: thread-compatible.
class MemoryFluctuation {
 public:
  // The fluctuation, a share of 1, of the cycle that ends with this step; nothing at other steps,
  // and for a cycle in which nothing was held. REQUIRES: arena_bytes > 0 where a cycle ends.
  std::optional<double> Observe(const MemoryStep& step);

 private:
  bool begun_ = false;  // a step was seen, in this cycle or the one before
  double first_ = 0;    // of held less grown, in bytes; as are the next two
  double peak_ = 0;
  double trough_ = 0;
  double grown_ = 0;   // since the cycle began
  bool held_ = false;  // anything, in this cycle
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_QUALITY_MEMORY_FLUCTUATION_H_
