#include "cache/policies/registry.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "cache/policies/policies.h"

namespace condense {
namespace {

constexpr PolicyInfo kPolicies[] = {
    {"none", "keep every entry, change the format only", MakeNonePolicy},
    {"balanced", "narrower formats first, then merge look-alikes as far as the target asks",
     MakeBalancedPolicy},
    {"similarity", "merge look-alikes; the most attended keeps its key",
     [] { return MakeSimilarityPolicy(GroupKind::kPivot); }},
    {"similarity_average", "merge look-alikes; keys are averaged",
     [] { return MakeSimilarityPolicy(GroupKind::kAverage); }},
    {"attention", "fold the least attended; loses facts that nobody has asked for yet",
     MakeAttentionPolicy},
    {"lru", "fold or drop what drew no attention for longest; what a pool at its cap does",
     MakeLruPolicy},
    {"window", "sinks and the newest entries only: a floor for evaluation", MakeWindowPolicy},
    {"random", "drop entries at random: a floor for evaluation", MakeRandomPolicy},
};

}  // namespace

std::span<const PolicyInfo> RegisteredPolicies() { return kPolicies; }

absl::StatusOr<std::unique_ptr<const Policy>> MakePolicy(std::string_view name) {
  std::string known;
  for (const PolicyInfo& policy : kPolicies) {
    if (policy.name == name) return policy.make();
    known += (known.empty() ? "" : ", ") + std::string(policy.name);
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("policy is \"%s\", must be one of %s", std::string(name), known));
}

}  // namespace condense
