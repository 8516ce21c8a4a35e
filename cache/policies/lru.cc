// What a pool at its cap does: the entries that drew no attention for longest leave, each into its
// most similar neighbour as long as one can take it up.

#include <algorithm>
#include <numeric>
#include <vector>

#include "cache/importance_fold.h"
#include "cache/policies/policies.h"

namespace condense {
namespace {

// Free entries, least recently attended first; of equal ones that with less attention, then the
// older.
std::vector<int32_t> ByIdleness(const UnitEvidence& evidence, const MergeBuilder& merges) {
  std::vector<int32_t> order;
  for (int32_t i = 0; i < merges.num_entries(); ++i) {
    if (!merges.is_protected(i)) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (evidence.idle_steps[a] != evidence.idle_steps[b]) {
      return evidence.idle_steps[a] > evidence.idle_steps[b];
    }
    return merges.mass(a) < merges.mass(b);
  });
  return order;
}

class LruPolicy : public Policy {
 public:
  std::string_view name() const override { return "lru"; }
  bool needs_keys() const override { return true; }

 private:
  MergePlan Merge(const Task& task) const override {
    MergeBuilder merges(task.view->entries, task.masses, GroupKind::kPivot);
    const int32_t target = task.target_entries.value_or(merges.num_entries());
    const std::vector<int32_t> order = ByIdleness(*task.view->evidence, merges);
    const UnitKeys keys(task.view->keys, task.view->head_dim);
    FoldInOrder(order, target, task.params->fold_window, keys, &merges);
    // What nobody could take up goes without a trace: the cap is a cap.
    for (const int32_t entry : order) {
      if (merges.num_left() <= target) break;
      if (merges.is_left(entry)) merges.Drop(entry);
    }
    MergePlan plan = merges.Build();
    plan.shortfall = Shortfall::kProtected;
    return plan;
  }
};

}  // namespace

std::unique_ptr<const Policy> MakeLruPolicy() { return std::make_unique<LruPolicy>(); }

}  // namespace condense
