#ifndef CONDENSE_CACHE_POLICIES_POLICIES_H_
#define CONDENSE_CACHE_POLICIES_POLICIES_H_

// One factory per policy; each is defined in the file of its name. Look policies up in registry.h.

#include <memory>

#include "cache/merge_plan.h"
#include "cache/policy.h"

namespace condense {

std::unique_ptr<const Policy> MakeNonePolicy();
std::unique_ptr<const Policy> MakeWindowPolicy();
std::unique_ptr<const Policy> MakeRandomPolicy();
// kPivot: "similarity"; kAverage: "similarity_average".
std::unique_ptr<const Policy> MakeSimilarityPolicy(GroupKind kind);
std::unique_ptr<const Policy> MakeAttentionPolicy();
std::unique_ptr<const Policy> MakeBalancedPolicy();
std::unique_ptr<const Policy> MakeLruPolicy();

}  // namespace condense

#endif  // CONDENSE_CACHE_POLICIES_POLICIES_H_
