// Narrower formats first (chosen before this is called), then look-alikes with the highest cosine
// that reaches the target, and folding by attention only where the user allows it.

#include <algorithm>
#include <utility>
#include <vector>

#include "cache/cosine_clusters.h"
#include "cache/importance_fold.h"
#include "cache/policies/policies.h"

namespace condense {
namespace {

class BalancedPolicy : public Policy {
 public:
  std::string_view name() const override { return "balanced"; }
  bool needs_keys() const override { return true; }
  bool merges_alike() const override { return true; }

 private:
  bool tries_formats_first() const override { return true; }

  MergePlan Merge(const Task& task) const override {
    const PolicyParams& params = *task.params;
    const UnitKeys keys(task.view->keys, task.view->head_dim);
    const CosineClusters clusters(MergeBuilder(task.view->entries, task.masses, GroupKind::kPivot),
                                  keys, params.cluster_window, params.max_members);
    const int32_t target = task.target_entries.value_or(task.view->entries.size());
    auto [merges, cosine] =
        params.shared_cosine > 0.0f
            ? clusters.At(params.shared_cosine)
            : clusters.ReachTarget(target, params.balanced_cosine,
                                   std::max(params.balanced_cosine, params.cosine_top));
    Shortfall shortfall = Shortfall::kThreshold;
    if (params.allow_importance && merges.num_left() > target) {
      std::vector<int32_t> candidates;
      for (int32_t i = 0; i < merges.num_entries(); ++i) {
        if (merges.is_left(i) && !merges.is_protected(i)) candidates.push_back(i);
      }
      FoldLeastImportant(candidates, target, merges.num_entries(), params.fold_window, keys,
                         &merges);
      shortfall = candidates.empty() ? Shortfall::kProtected : Shortfall::kNoPartner;
    }
    MergePlan plan = merges.Build();
    plan.cosine = cosine;
    plan.shortfall = shortfall;
    return plan;
  }
};

}  // namespace

std::unique_ptr<const Policy> MakeBalancedPolicy() { return std::make_unique<BalancedPolicy>(); }

}  // namespace condense
