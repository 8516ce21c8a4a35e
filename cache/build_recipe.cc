#include "cache/build_recipe.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

constexpr int64_t kMaxDistance = 65535;

// `first` is the first entry of the same block.
absl::Status CheckFits(const KvBuildEntry& entry, const KvBuildEntry& first, int32_t slot,
                       KvBlockFlags flags) {
  if ((flags & kKvBias) == 0 && entry.bias != 0.0f) {
    return absl::InternalError(
        absl::StrFormat("an entry of bias %g would go into a block without biases", entry.bias));
  }
  if ((flags & kKvCount) == 0 && entry.count != 1) {
    return absl::InternalError(
        absl::StrFormat("an entry of %d tokens would go into a block without counts", entry.count));
  }
  const auto distance = static_cast<int64_t>(entry.position - first.position);
  if ((flags & kKvPosition) == 0 && distance != slot) {
    return absl::InternalError(absl::StrFormat(
        "entry %d of a block without positions would stand %d after its first", slot, distance));
  }
  if (distance > kMaxDistance) {
    return absl::InternalError(
        absl::StrFormat("entry %d of a block would stand %d after its first, at most %d fit", slot,
                        distance, kMaxDistance));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BuildRecipe> MakeBuildRecipe(const MergePlan& plan,
                                            std::span<const KvBlockRef> destinations,
                                            int32_t block_tokens) {
  const size_t num_blocks = (plan.groups.size() + block_tokens - 1) / block_tokens;
  if (num_blocks > destinations.size()) {
    return absl::InternalError(absl::StrFormat("%d entries need %d blocks, there are %d",
                                               plan.groups.size(), num_blocks,
                                               destinations.size()));
  }
  BuildRecipe recipe;
  recipe.members.reserve(plan.members.size());
  for (const MergeMember& member : plan.members) {
    recipe.members.push_back({member.entry, member.key_weight, member.value_weight});
  }
  recipe.entries.reserve(plan.groups.size());
  for (const MergeGroup& group : plan.groups) {
    const auto slot = static_cast<int32_t>(recipe.entries.size()) % block_tokens;
    recipe.entries.push_back({.first_member = group.first_member,
                              .num_members = group.num_members,
                              .position = static_cast<float>(group.position),
                              .bias = group.bias,
                              .count = group.count});
    if (slot == 0) {
      recipe.blocks.push_back(destinations[recipe.blocks.size()]);
      recipe.blocks.back().count = 0;
    }
    ++recipe.blocks.back().count;
    RETURN_IF_ERROR(CheckFits(recipe.entries.back(), *(recipe.entries.end() - 1 - slot), slot,
                              recipe.blocks.back().flags));
  }
  return recipe;
}

}  // namespace condense
