#ifndef CONDENSE_CACHE_ENTRY_STATS_H_
#define CONDENSE_CACHE_ENTRY_STATS_H_

// How much attention each entry of a unit has drawn: the evidence on which policies decide.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/merge_plan.h"

namespace condense {

// The evidence of a range at one moment. A value. All vectors [n].
struct UnitEvidence {
  std::vector<float> mean;          // probability per step that could see the entry
  std::vector<float> window_max;    // largest probability in the last 16 to 32 steps
  std::vector<int32_t> steps;       // that could see the entry; recent ones, if it is very old
  std::vector<int32_t> idle_steps;  // since it drew more than 1/(4n); counts up to 65535
  std::vector<uint8_t> marked;      // 1: marked as candidate and not attended since

  int32_t size() const { return static_cast<int32_t>(mean.size()); }
};

// The mass of each entry for folds: its mean probability, at least kLeastMass. An entry that no
// step has seen weighs what the others weigh on average. Never NaN, never above 1.
inline constexpr float kLeastMass = 1e-7f;
std::vector<float> ObservedMasses(const UnitEvidence& evidence);

// Observed is the maximum over the unit's query heads of the softmax probability.
// Owns: 13 bytes per entry. Threads: thread-compatible, owner is the engine thread. Cost of a step:
// one pass over the entries.
class EntryStats {
 public:
  // Steps per half window: the window is the current half and the one before.
  static constexpr int32_t kHalfWindow = 16;

  int32_t size() const { return static_cast<int32_t>(sum_.size()); }
  // A new entry, not yet seen by any step.
  void Append() { AppendMany(1); }
  void AppendMany(int32_t num_entries);
  // One step, or one sampled query of a prompt: probability[i] of the first entries, which are what
  // it could see; the entries behind them had not been written. NaN counts as 0. `num_seen` is
  // among how many the attention was shared, where these entries are but a part of a list.
  // REQUIRES: at most size() probabilities.
  void Observe(std::span<const float> probability, size_t num_seen);
  void Observe(std::span<const float> probability) { Observe(probability, probability.size()); }
  // The entries [first, first + plan.num_entries) have become the plan's groups. What members drew
  // per step adds up, so that total mass stays; the steps are those of the member seen longest, the
  // window maximum is the largest. Marks are renewed from the plan.
  // REQUIRES: the plan is valid, the range exists.
  void CarryOver(const MergePlan& plan, int32_t first);
  // REQUIRES: the range exists.
  UnitEvidence Freeze(int32_t first, int32_t num_entries) const;
  void Clear();

 private:
  void StartHalfWindow();
  void HalveHistory();
  // Entry `to` becomes what `members` of the range of `from` make together, marks aside.
  void Take(size_t to, const EntryStats& from, int32_t first, std::span<const MergeMember> members);

  int32_t steps_in_half_ = 0;
  int32_t steps_counted_ = 0;  // at least the largest of steps_
  int current_half_ = 0;
  std::vector<float> sum_;
  std::vector<uint16_t> steps_;
  std::vector<uint16_t> idle_;
  std::vector<int16_t> half_max_[2];  // upper halves of non-negative floats: they order as integers
  std::vector<uint8_t> marked_;
};

}  // namespace condense

#endif  // CONDENSE_CACHE_ENTRY_STATS_H_
