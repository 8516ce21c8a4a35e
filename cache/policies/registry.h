#ifndef CONDENSE_CACHE_POLICIES_REGISTRY_H_
#define CONDENSE_CACHE_POLICIES_REGISTRY_H_

// Every policy by name: what flags, requests, metrics labels and the conformance suite know.

#include <memory>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "cache/policy.h"

namespace condense {

struct PolicyInfo {
  std::string_view name;
  std::string_view summary;  // one line, for --help
  std::unique_ptr<const Policy> (*make)();
};

// In the order in which they should be listed. Threads: any.
std::span<const PolicyInfo> RegisteredPolicies();
// INVALID_ARGUMENT naming the policy and the ones that exist.
absl::StatusOr<std::unique_ptr<const Policy>> MakePolicy(std::string_view name);

}  // namespace condense

#endif  // CONDENSE_CACHE_POLICIES_REGISTRY_H_
