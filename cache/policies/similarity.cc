// Merges entries whose position-free keys point the same way. It asks nothing about importance but
// who keeps its key, so facts that nobody has asked for yet survive.

#include <algorithm>
#include <utility>

#include "cache/cosine_clusters.h"
#include "cache/policies/policies.h"

namespace condense {
namespace {

class SimilarityPolicy : public Policy {
 public:
  explicit SimilarityPolicy(GroupKind kind) : kind_(kind) {}

  std::string_view name() const override {
    return kind_ == GroupKind::kPivot ? "similarity" : "similarity_average";
  }
  bool needs_keys() const override { return true; }
  bool merges_alike() const override { return true; }

 private:
  MergePlan Merge(const Task& task) const override {
    const PolicyParams& params = *task.params;
    const UnitKeys keys(task.view->keys, task.view->head_dim);
    const CosineClusters clusters(MergeBuilder(task.view->entries, task.masses, kind_), keys,
                                  params.cluster_window, params.max_members);
    const float fixed = params.shared_cosine > 0.0f ? params.shared_cosine : params.cosine;
    const auto [merges, cosine] =
        params.shared_cosine > 0.0f || !task.target_entries.has_value()
            ? clusters.At(fixed)
            : clusters.ReachTarget(*task.target_entries, params.cosine,
                                   std::max(params.cosine, params.cosine_top));
    MergePlan plan = merges.Build();
    plan.cosine = cosine;
    plan.shortfall = Shortfall::kThreshold;
    return plan;
  }

  const GroupKind kind_;
};

}  // namespace

std::unique_ptr<const Policy> MakeSimilarityPolicy(GroupKind kind) {
  return std::make_unique<SimilarityPolicy>(kind);
}

}  // namespace condense
