#include "cache/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace condense {
namespace {

constexpr int32_t kHeadDim = 64;

struct RopeCase {
  std::string name;
  RopeFrequencies frequencies;
};

RopeFrequencies Plain(double theta, double linear_factor, RopePairing pairing) {
  RopeFrequencies frequencies{.pairing = pairing};
  for (int i = 0; i < kHeadDim / 2; ++i) {
    frequencies.radians.push_back(std::pow(theta, -2.0 * i / kHeadDim) / linear_factor);
  }
  return frequencies;
}

// Llama 3: low frequencies are divided by 8, those between the bounds by less.
RopeFrequencies Llama3(RopePairing pairing) {
  RopeFrequencies frequencies = Plain(500000, 1, pairing);
  for (double& radians : frequencies.radians) {
    const double wavelength = 2 * M_PI / radians;
    const double blend = (8192 / wavelength - 1.0) / (4.0 - 1.0);
    if (wavelength > 8192) {
      radians /= 8;
    } else if (wavelength > 2048) {
      radians = (1 - blend) * radians / 8 + blend * radians;
    }
  }
  return frequencies;
}

std::vector<RopeCase> Cases() {
  std::vector<RopeCase> cases;
  for (const RopePairing pairing : {RopePairing::kAdjacent, RopePairing::kHalfSplit}) {
    const std::string suffix = pairing == RopePairing::kAdjacent ? "Adjacent" : "HalfSplit";
    cases.push_back({"Plain" + suffix, Plain(100000, 1, pairing)});
    cases.push_back({"Linear" + suffix, Plain(10000, 4, pairing)});
    cases.push_back({"Llama3" + suffix, Llama3(pairing)});
  }
  return cases;
}

// What the model does to a key that it has just computed, in double precision.
std::vector<float> FreshRope(const RopeFrequencies& rope, int32_t position,
                             const std::vector<float>& key) {
  std::vector<float> out(key.size());
  const size_t half = rope.radians.size();
  for (size_t i = 0; i < half; ++i) {
    const bool adjacent = rope.pairing == RopePairing::kAdjacent;
    const size_t a = adjacent ? 2 * i : i, b = adjacent ? 2 * i + 1 : i + half;
    const double angle = position * rope.radians[i];
    out[a] = static_cast<float>(key[a] * std::cos(angle) - key[b] * std::sin(angle));
    out[b] = static_cast<float>(key[a] * std::sin(angle) + key[b] * std::cos(angle));
  }
  return out;
}

std::vector<float> RandomKey(int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> key(kHeadDim);
  for (float& x : key) x = normal(random);
  return key;
}

class RopeTableTest : public testing::TestWithParam<RopeCase> {};

TEST_P(RopeTableTest, TurnEqualsFreshRopeAtTheNewPosition) {
  RopeTable table(GetParam().frequencies);
  table.Extend(8192);
  const std::vector<float> key = RandomKey(1);
  const int32_t positions[][2] = {{0, 0}, {0, 8000}, {5, 6}, {8191, 8190}, {7000, 13}, {100, 227}};
  for (const auto& [from, to] : positions) {
    std::vector<float> turned = FreshRope(table.frequencies(), from, key);
    table.Turn(to - from, turned.data());
    const std::vector<float> fresh = FreshRope(table.frequencies(), to, key);
    for (int d = 0; d < kHeadDim; ++d) EXPECT_NEAR(turned[d], fresh[d], 2e-6) << from << " " << d;
  }
}

TEST_P(RopeTableTest, ToOriginGivesTheKeyBeforeRope) {
  RopeTable table(GetParam().frequencies);
  table.Extend(4096);
  const std::vector<int32_t> positions{0, 3, 4096};
  std::vector<float> keys;
  for (size_t i = 0; i < positions.size(); ++i) {
    const auto key = FreshRope(table.frequencies(), positions[i], RandomKey(static_cast<int>(i)));
    keys.insert(keys.end(), key.begin(), key.end());
  }
  table.ToOrigin(positions, keys.data());
  for (size_t i = 0; i < positions.size(); ++i) {
    const std::vector<float> key = RandomKey(static_cast<int>(i));
    for (int d = 0; d < kHeadDim; ++d) EXPECT_NEAR(keys[i * kHeadDim + d], key[d], 2e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, RopeTableTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

TEST(RopeTableSizeTest, ExtendKeepsWhatIsKnown) {
  RopeTable table(Plain(10000, 1, RopePairing::kAdjacent));
  EXPECT_EQ(table.num_positions(), 0);
  table.Extend(10);
  EXPECT_EQ(table.num_positions(), 11);
  table.Extend(3);
  EXPECT_EQ(table.num_positions(), 11);
}

TEST(RopeTableSizeTest, TurnByNothingChangesNoBit) {
  RopeTable table(Plain(10000, 1, RopePairing::kHalfSplit));
  table.Extend(0);
  const std::vector<float> key = RandomKey(3);
  std::vector<float> turned = key;
  table.Turn(0, turned.data());
  EXPECT_EQ(turned, key);
}

}  // namespace
}  // namespace condense
