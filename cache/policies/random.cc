// Drops entries at random: whatever claims to choose well must beat this.

#include <utility>
#include <vector>

#include "cache/policies/policies.h"

namespace condense {
namespace {

// SplitMix64: the same sequence on every machine, unlike the distributions of <random>.
class RandomSequence {
 public:
  explicit RandomSequence(uint64_t seed) : state_(seed) {}
  // In [0, bound).
  uint64_t Next(uint64_t bound) {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % bound;
  }

 private:
  uint64_t state_;
};

class RandomPolicy : public Policy {
 public:
  std::string_view name() const override { return "random"; }

 private:
  MergePlan Merge(const Task& task) const override {
    MergeBuilder merges(task.view->entries, task.masses, GroupKind::kPivot);
    std::vector<int32_t> droppable;
    for (int32_t i = 0; i < merges.num_entries(); ++i) {
      if (!merges.is_protected(i)) droppable.push_back(i);
    }
    const int32_t target = task.target_entries.value_or(merges.num_entries());
    RandomSequence random(task.params->seed);
    while (!droppable.empty() && merges.num_left() > target) {
      std::swap(droppable[random.Next(droppable.size())], droppable.back());
      merges.Drop(droppable.back());
      droppable.pop_back();
    }
    MergePlan plan = merges.Build();
    plan.shortfall = Shortfall::kProtected;
    return plan;
  }
};

}  // namespace

std::unique_ptr<const Policy> MakeRandomPolicy() { return std::make_unique<RandomPolicy>(); }

}  // namespace condense
