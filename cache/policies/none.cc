// Keeps every entry. What shrinks is the format.

#include "cache/policies/policies.h"

namespace condense {
namespace {

class NonePolicy : public Policy {
 public:
  std::string_view name() const override { return "none"; }
  bool needs_evidence() const override { return false; }

 private:
  MergePlan Merge(const Task& task) const override {
    MergePlan plan = MergeBuilder(task.view->entries, task.masses, GroupKind::kPivot).Build();
    plan.shortfall = Shortfall::kKeepsAll;
    return plan;
  }
};

}  // namespace

std::unique_ptr<const Policy> MakeNonePolicy() { return std::make_unique<NonePolicy>(); }

}  // namespace condense
