#include "cache/unit_keys.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace condense {
namespace {

std::vector<float> Keys(std::initializer_list<std::pair<float, float>> first_two) {
  std::vector<float> keys;
  for (const auto& [x, y] : first_two) {
    keys.insert(keys.end(), {x, y, 0, 0, 0, 0, 0, 0});
  }
  return keys;
}

TEST(UnitKeysTest, CosinesIgnoreLength) {
  const UnitKeys keys(Keys({{3, 0}, {0.1f, 0}, {0, 5}, {-2, 0}, {1, 1}}), 8);
  EXPECT_FLOAT_EQ(keys.Cosine(0, 1), 1.0f);
  EXPECT_FLOAT_EQ(keys.Cosine(0, 2), 0.0f);
  EXPECT_FLOAT_EQ(keys.Cosine(0, 3), -1.0f);
  EXPECT_FLOAT_EQ(keys.Cosine(1, 4), std::sqrt(0.5f));
}

TEST(UnitKeysTest, KeysWithoutDirectionAreAlikeToNothing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const UnitKeys keys(Keys({{1, 1}, {0, 0}, {nan, 1}, {infinity, 1}, {1e30f, 1}}), 8);
  for (int i = 1; i < 5; ++i) {
    EXPECT_EQ(keys.Cosine(0, i), 0.0f) << i;
    EXPECT_EQ(keys.Cosine(i, i), 0.0f) << i;
  }
}

TEST(UnitKeysTest, DotAddsEveryComponent) {
  std::vector<float> a(24), b(24);
  for (int d = 0; d < 24; ++d) {
    a[d] = static_cast<float>(d);
    b[d] = static_cast<float>(d % 5);
  }
  float expected = 0;
  for (int d = 0; d < 24; ++d) expected += a[d] * b[d];
  EXPECT_EQ(Dot(a.data(), b.data(), 24), expected);
}

}  // namespace
}  // namespace condense
