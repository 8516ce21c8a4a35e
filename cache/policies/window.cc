// Keeps the sinks and the newest entries and drops what lies between them.

#include "cache/policies/policies.h"

namespace condense {
namespace {

class WindowPolicy : public Policy {
 public:
  std::string_view name() const override { return "window"; }

 private:
  MergePlan Merge(const Task& task) const override {
    MergeBuilder merges(task.view->entries, task.masses, GroupKind::kPivot);
    const int32_t target = task.target_entries.value_or(merges.num_entries());
    for (int32_t i = 0; i < merges.num_entries() && merges.num_left() > target; ++i) {
      if (!merges.is_protected(i)) merges.Drop(i);
    }
    MergePlan plan = merges.Build();
    plan.shortfall = Shortfall::kProtected;
    return plan;
  }
};

}  // namespace

std::unique_ptr<const Policy> MakeWindowPolicy() { return std::make_unique<WindowPolicy>(); }

}  // namespace condense
