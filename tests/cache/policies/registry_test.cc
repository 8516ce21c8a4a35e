#include "cache/policies/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace condense {
namespace {

TEST(RegistryTest, NamesAreUniqueAndFitForLabels) {
  std::set<std::string_view> names;
  for (const PolicyInfo& info : RegisteredPolicies()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_EQ(info.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"), std::string_view::npos);
    EXPECT_FALSE(info.summary.empty());
  }
  for (const char* name :
       {"none", "window", "random", "similarity", "attention", "balanced", "lru"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
}

TEST(RegistryTest, MakesByName) {
  const auto policy = MakePolicy("attention");
  ASSERT_TRUE(policy.ok());
  EXPECT_EQ((*policy)->name(), "attention");
}

TEST(RegistryTest, UnknownNameIsRefusedWithTheOnesThatExist) {
  const auto policy = MakePolicy("h2o");
  EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(policy.status().message()),
              testing::AllOf(testing::HasSubstr("\"h2o\""), testing::HasSubstr("balanced")));
}

}  // namespace
}  // namespace condense
