#ifndef CONDENSE_ENGINE_STEP_PLAN_H_
#define CONDENSE_ENGINE_STEP_PLAN_H_

// What one step runs: for each scheduled sequence, how many of its tokens.

#include <cstdint>
#include <vector>

namespace condense {

class Sequence;

struct StepPlan {
  struct Item {
    Sequence* sequence = nullptr;
    int32_t num_tokens = 0;   // from `computed` on; room in the cache is reserved
    bool background = false;  // nobody waits for it
  };
  std::vector<Item> items;
  int32_t num_tokens = 0;           // sum over items
  std::vector<Sequence*> started;   // admitted for the first time
  Sequence* unfit = nullptr;        // fits not even alone into the cache: to be ended
  int32_t preempted = 0;            // sequences set back while planning
  int32_t deferred = 0;             // running ones that wait for memory which compaction will free
  int32_t preemptions_avoided = 0;  // had been deferred and now got their room

  // The background's item is the last one, where it has any.
  bool HasBackground() const { return !items.empty() && items.back().background; }
  int32_t background_tokens() const { return HasBackground() ? items.back().num_tokens : 0; }
  // Whether a request runs, and not only the background.
  bool HasRequests() const { return items.size() > (HasBackground() ? 1 : 0); }
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_STEP_PLAN_H_
