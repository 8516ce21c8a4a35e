#ifndef CONDENSE_CACHE_BUILD_RECIPE_H_
#define CONDENSE_CACHE_BUILD_RECIPE_H_

// A merge plan as kv-build carries it out: which block and slot each entry of the result gets, and
// from what it is made.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "cache/merge_plan.h"
#include "kernels/kv_op_args.h"

namespace condense {

struct BuildRecipe {
  std::vector<KvBuildMember> members;
  std::vector<KvBuildEntry> entries;
  std::vector<KvBlockRef> blocks;  // the destinations used, counts set
};

// Fills the destinations in order, block_tokens entries each, in the order of the plan's groups.
// INTERNAL where what the blocks' flags leave out would be needed: a bias without kKvBias, a count
// without kKvCount, a gap between positions without kKvPosition, one above 65,535 in a block with
// it; or where there are too few destinations. REQUIRES: the plan is valid.
absl::StatusOr<BuildRecipe> MakeBuildRecipe(const MergePlan& plan,
                                            std::span<const KvBlockRef> destinations,
                                            int32_t block_tokens);

}  // namespace condense

#endif  // CONDENSE_CACHE_BUILD_RECIPE_H_
