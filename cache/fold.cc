#include "cache/fold.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/base/check.h"

namespace condense {
namespace {

// sum += weight * x.
void AddScaled(const float* x, double weight, std::vector<double>* sum) {
  for (size_t d = 0; d < sum->size(); ++d) (*sum)[d] += weight * x[d];
}

void AverageKey(const MergePlan& plan, const MergeGroup& group, const EntryVectors& source,
                const RopeTable& rope, float* key) {
  std::vector<double> sum(source.head_dim, 0.0);
  std::vector<float> turned(source.head_dim);
  for (const MergeMember& member : plan.members_of(group)) {
    const float* from = source.keys + int64_t{member.entry} * source.head_dim;
    std::copy_n(from, source.head_dim, turned.begin());
    rope.Turn(group.position - source.positions[member.entry], turned.data());
    AddScaled(turned.data(), member.key_weight, &sum);
  }
  std::copy(sum.begin(), sum.end(), key);
}

}  // namespace

double FoldedBias(double bias, double own_mass, double total_mass) {
  DCHECK(own_mass > 0 && total_mass > 0);
  return bias + std::log(total_mass / own_mass);
}

double AveragedBias(std::span<const float> biases) {
  DCHECK(!biases.empty());
  const double largest = *std::max_element(biases.begin(), biases.end());
  double sum = 0.0;
  for (const float bias : biases) sum += std::exp(bias - largest);
  return largest + std::log(sum);
}

void BuildEntry(const MergePlan& plan, const MergeGroup& group, const EntryVectors& source,
                const RopeTable& rope, float* key, float* value) {
  const int32_t head_dim = source.head_dim;
  const int64_t first = int64_t{plan.members[group.first_member].entry} * head_dim;
  if (group.kind == GroupKind::kPivot) {
    std::copy_n(source.keys + first, head_dim, key);
  } else {
    AverageKey(plan, group, source, rope, key);
  }
  if (group.num_members == 1) {
    std::copy_n(source.values + first, head_dim, value);
    return;
  }
  std::vector<double> sum(head_dim, 0.0);
  for (const MergeMember& member : plan.members_of(group)) {
    AddScaled(source.values + int64_t{member.entry} * head_dim, member.value_weight, &sum);
  }
  std::copy(sum.begin(), sum.end(), value);
}

}  // namespace condense
