#include "cache/merge_builder.h"

#include <algorithm>
#include <cmath>

#include "cache/fold.h"
#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr double kMostWeight = 16.0;  // exp(kMaxBias)

}  // namespace

MergeBuilder::MergeBuilder(const UnitEntries& source, std::span<const float> masses, GroupKind kind)
    : source_(&source), kind_(kind), num_left_(source.size()), entries_(source.size()) {
  CHECK_EQ(static_cast<int32_t>(masses.size()), source.size());
  for (int32_t i = 0; i < source.size(); ++i) {
    DCHECK(masses[i] > 0);
    const float bias = source.bias(i);
    const double weight = bias == 0 ? 1.0 : std::exp(static_cast<double>(bias));
    entries_[i] = {.mass = masses[i],
                   .own_mass = masses[i],
                   .weight = weight,
                   .sum_weight = weight,
                   .count = source.count(i),
                   .last = i};
  }
}

bool MergeBuilder::CanFold(int32_t from, int32_t into) const {
  const Entry& gone = entries_[from];
  const Entry& kept = entries_[into];
  DCHECK(gone.is_left && kept.is_left && from != into);
  if (is_protected(from) || is_protected(into)) return false;
  const double weight = kind_ == GroupKind::kPivot
                            ? kept.weight * (kept.mass + gone.mass) / kept.own_mass
                            : kept.sum_weight + gone.sum_weight;
  // Written so that NaN is refused.
  return weight <= kMostWeight && kept.count + gone.count <= kMaxCount;
}

bool MergeBuilder::TryFold(int32_t from, int32_t into) {
  if (!CanFold(from, into)) return false;
  Entry& gone = entries_[from];
  Entry& kept = entries_[into];
  kept.mass += gone.mass;
  kept.sum_weight += gone.sum_weight;
  kept.count += gone.count;
  entries_[kept.last].next = from;
  kept.last = gone.last;
  gone.is_left = false;
  --num_left_;
  return true;
}

void MergeBuilder::Drop(int32_t entry) {
  DCHECK(is_left(entry) && !is_protected(entry));
  entries_[entry].is_left = false;
  entries_[entry].last = -1;  // what tells a dropped entry from a folded one
  --num_left_;
}

MergePlan MergeBuilder::Build() const {
  MergePlan plan{.num_entries = num_entries(), .target_entries = num_entries()};
  plan.groups.reserve(num_left_);
  plan.members.reserve(num_entries());
  for (int32_t i = 0; i < num_entries(); ++i) {
    if (entries_[i].is_left) AddGroup(i, &plan);
    if (entries_[i].last != -1) continue;
    for (int32_t e = i; e != -1; e = entries_[e].next) plan.drops.push_back(e);
  }
  std::sort(plan.drops.begin(), plan.drops.end());
  if (kind_ == GroupKind::kAverage) SortGroups(&plan);
  return plan;
}

void MergeBuilder::AddGroup(int32_t pivot, MergePlan* plan) const {
  const Entry& entry = entries_[pivot];
  MergeGroup group{.first_member = static_cast<int32_t>(plan->members.size()),
                   .position = position(pivot),
                   .bias = source_->bias(pivot),
                   .count = entry.count};
  AddMembers(pivot, plan);
  group.num_members = static_cast<int32_t>(plan->members.size()) - group.first_member;
  if (group.num_members > 1 && kind_ == GroupKind::kPivot) {
    group.bias = static_cast<float>(FoldedBias(group.bias, entry.own_mass, entry.mass));
  } else if (group.num_members > 1) {
    group.kind = GroupKind::kAverage;
    std::vector<float> biases;
    double mean = 0.0;
    for (const MergeMember& member : plan->members_of(group)) {
      biases.push_back(source_->bias(member.entry));
      mean += static_cast<double>(member.key_weight) * position(member.entry);
    }
    group.bias = static_cast<float>(AveragedBias(biases));
    group.position = static_cast<int32_t>(std::lround(mean));
  }
  plan->groups.push_back(group);
}

void MergeBuilder::AddMembers(int32_t pivot, MergePlan* plan) const {
  const Entry& group = entries_[pivot];
  for (int32_t e = pivot; e != -1; e = entries_[e].next) {
    const Entry& entry = entries_[e];
    const double key_weight =
        kind_ == GroupKind::kPivot ? (e == pivot ? 1.0 : 0.0) : entry.weight / group.sum_weight;
    // A lone entry's weights are one by definition, not by division.
    const double value_weight = entry.next == -1 && e == pivot ? 1.0 : entry.own_mass / group.mass;
    plan->members.push_back({.entry = e,
                             .key_weight = static_cast<float>(key_weight),
                             .value_weight = static_cast<float>(value_weight)});
  }
}

// Averages stand between their members; members move along with their groups.
void MergeBuilder::SortGroups(MergePlan* plan) const {
  std::stable_sort(
      plan->groups.begin(), plan->groups.end(),
      [](const MergeGroup& a, const MergeGroup& b) { return a.position < b.position; });
  std::vector<MergeMember> members;
  members.reserve(plan->members.size());
  for (MergeGroup& group : plan->groups) {
    const std::span<const MergeMember> old = plan->members_of(group);
    group.first_member = static_cast<int32_t>(members.size());
    members.insert(members.end(), old.begin(), old.end());
  }
  plan->members = std::move(members);
}

}  // namespace condense
