// Folds the entries that have drawn the least attention per step that could see them. Below the
// hard limit an entry is marked one cycle and goes in a later one, unless it is attended meanwhile.

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "cache/importance_fold.h"
#include "cache/policies/policies.h"

namespace condense {
namespace {

enum class Pressure { kNone, kMark, kSoft, kHard };

Pressure PressureOf(const PolicyParams& params) {
  if (params.fill >= params.hard_limit) return Pressure::kHard;
  if (params.fill >= params.soft_limit) return Pressure::kSoft;
  if (params.fill >= params.mark_at) return Pressure::kMark;
  return Pressure::kNone;
}

// Why no more was folded.
Shortfall ShortfallOf(Pressure pressure, bool quota_used_up, bool all_protected) {
  if (all_protected) return Shortfall::kProtected;
  if (pressure < Pressure::kSoft) return Shortfall::kUnmarked;
  if (quota_used_up) return Shortfall::kQuota;
  return pressure == Pressure::kHard ? Shortfall::kNoPartner : Shortfall::kUnmarked;
}

class AttentionPolicy : public Policy {
 public:
  std::string_view name() const override { return "attention"; }
  bool needs_keys() const override { return true; }

 private:
  MergePlan Merge(const Task& task) const override {
    const PolicyParams& params = *task.params;
    MergeBuilder merges(task.view->entries, task.masses, GroupKind::kPivot);
    std::vector<int32_t> candidates, marked;
    for (int32_t i = 0; i < merges.num_entries(); ++i) {
      if (merges.is_protected(i)) continue;
      candidates.push_back(i);
      if (task.view->evidence->marked[i]) marked.push_back(i);
    }
    // Written so that NaN removes nothing.
    const double share = params.drop_share > 0 ? std::min(params.drop_share, 1.0) : 0.0;
    const auto quota = static_cast<int32_t>(std::ceil(share * candidates.size()));
    const Pressure pressure = PressureOf(params);
    // At the hard limit a target outranks the share; without a target the share is all there is.
    const bool to_target = pressure == Pressure::kHard && task.target_entries.has_value();
    const int32_t most = to_target ? merges.num_entries() : quota;
    const int32_t target = task.target_entries.value_or(0);
    int32_t num_folded = 0;
    if (pressure >= Pressure::kSoft) {
      const UnitKeys keys(task.view->keys, task.view->head_dim);
      num_folded = FoldLeastImportant(pressure == Pressure::kHard ? candidates : marked, target,
                                      most, params.fold_window, keys, &merges);
    }
    MergePlan plan = merges.Build();
    if (pressure == Pressure::kMark || pressure == Pressure::kSoft) {
      plan.marks = FindMarks(candidates, quota, merges, plan);
    }
    plan.shortfall = ShortfallOf(pressure, num_folded >= most, candidates.empty());
    return plan;
  }

  // The least important entries that this plan leaves as they are.
  static std::vector<int32_t> FindMarks(const std::vector<int32_t>& candidates, int32_t quota,
                                        const MergeBuilder& merges, const MergePlan& plan) {
    std::vector<bool> alone(merges.num_entries(), false);
    for (const MergeGroup& group : plan.groups) {
      if (group.num_members == 1) alone[plan.members[group.first_member].entry] = true;
    }
    std::vector<int32_t> unchanged;
    for (const int32_t entry : candidates) {
      if (alone[entry]) unchanged.push_back(entry);
    }
    return LeastImportant(unchanged, quota, merges);
  }
};

}  // namespace

std::unique_ptr<const Policy> MakeAttentionPolicy() { return std::make_unique<AttentionPolicy>(); }

}  // namespace condense
