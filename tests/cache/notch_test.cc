#include "cache/notch.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace condense {
namespace {

struct Row {
  std::string preset;
  int32_t notches;
  double ratio;
  KvFormat format;
};

TEST(NotchTest, PresetsAtEachNotch) {
  const Row rows[] = {
      {"lossless", -4, 1.9, KvFormat::kK8V8},
      {"lossless", 0, 1.9, KvFormat::kK8V8},
      {"lossless", 3, 1.9, KvFormat::kK8V8},
      // Only its format makes it what it is: the third notch is felt.
      {"light", 0, 2.8, KvFormat::kK6V4},
      {"light", 1, 2.24, KvFormat::kK6V4},
      {"light", 2, 1.9, KvFormat::kK6V4},
      {"light", 3, 1.9, KvFormat::kK8V8},
      {"balanced", -1, 4.35 / 0.8, KvFormat::kK4V4},
      {"balanced", -3, 4.35 / 0.512, KvFormat::kK4V4},
      {"balanced", -4, 8.7, KvFormat::kK4V4},
      {"balanced", -100, 8.7, KvFormat::kK4V4},
      {"balanced", 0, 4.35, KvFormat::kK4V4},
      {"balanced", 1, 3.48, KvFormat::kK4V4},
      {"balanced", 2, 2.784, KvFormat::kK6V4},
      // 2.23 by the notch alone, which eight bits would have to merge for: six did not.
      {"balanced", 3, 1.9, KvFormat::kK8V8},
      {"balanced", 100, 1.9, KvFormat::kK8V8},
      {"aggressive", -4, 16.0, KvFormat::kK4V3},
      {"aggressive", 0, 8.0, KvFormat::kK4V3},
      {"aggressive", 1, 6.4, KvFormat::kK4V4},
      {"aggressive", 2, 5.12, KvFormat::kK6V4},
      {"aggressive", 3, 3.2, KvFormat::kK8V8},
  };
  for (const Row& row : rows) {
    const Compression at = AtNotch(MakeCompression(row.preset).value(), row.notches);
    EXPECT_NEAR(at.ratio, row.ratio, 1e-9) << row.preset << row.notches;
    EXPECT_EQ(at.formats, std::vector<KvFormat>{row.format}) << row.preset << row.notches;
  }
}

TEST(NotchTest, NothingElseChanges) {
  const Compression before = MakeCompression("aggressive").value();
  for (const int32_t notches : {-2, 1, 3}) {
    Compression at = AtNotch(before, notches);
    at.ratio = before.ratio;
    at.formats = before.formats;
    EXPECT_EQ(at.preset, before.preset);
    EXPECT_EQ(at.policy, before.policy);
    EXPECT_EQ(at.cosine, before.cosine);
    EXPECT_EQ(at.max_output_error, before.max_output_error);
    EXPECT_EQ(at.max_log_mass_error, before.max_log_mass_error);
    EXPECT_EQ(at.keeps_window, before.keeps_window);
    EXPECT_EQ(at.min_tokens, before.min_tokens);
  }
}

TEST(NotchTest, WhatCompactsNothingStaysSo) {
  for (const int32_t notches : {-3, 0, 3}) {
    const Compression at = AtNotch(MakeCompression("off").value(), notches);
    EXPECT_FALSE(at.active());
    EXPECT_EQ(at.ratio, 1.0);
  }
}

TEST(NotchTest, LowRatiosStay) {
  for (const double ratio : {1.2, 1.5, 1.9}) {
    for (const int32_t notches : {-3, 1, 3}) {
      const auto compression = MakeCompression("balanced", std::nullopt, ratio).value();
      EXPECT_EQ(AtNotch(compression, notches).ratio, ratio);
    }
  }
}

// What is left for merges to do, in bits: the ratio by what the format's codes reach.
double Merging(const Compression& compression) {
  const KvFormat format = compression.formats.back();
  return compression.ratio * (KvKeyBits(format) + KvValueBits(format)) / 32.0;
}

TEST(NotchTest, NoNotchTakesMemoryBackOrAsksForMoreMerges) {
  for (double ratio = 1.0; ratio <= 16.0; ratio += 0.1) {
    for (const char* policy : {"balanced", "none", "random"}) {
      const Compression compression = MakeCompression("light", policy, ratio).value();
      for (int32_t notches = 0; notches < 6; ++notches) {
        const Compression milder = AtNotch(compression, notches + 1);
        const Compression at = AtNotch(compression, notches);
        EXPECT_LE(milder.ratio, at.ratio) << ratio << policy << notches;
        if (milder.ratio > kLeastLoweredRatio) {
          EXPECT_LE(Merging(milder), Merging(at) + 1e-9) << ratio << policy << notches;
        }
        for (size_t i = 0; i < at.formats.size(); ++i) {
          EXPECT_GE(KvKeyBits(milder.formats[i]), KvKeyBits(at.formats[i]));
          EXPECT_GE(KvValueBits(milder.formats[i]), KvValueBits(at.formats[i]));
        }
      }
    }
  }
}

TEST(NotchTest, EveryFormatWidensToEightBitsAtLeast) {
  for (int i = 0; i < kNumKvFormats; ++i) {
    Compression compression = MakeCompression("aggressive").value();
    compression.formats = {static_cast<KvFormat>(i)};
    const KvFormat widest = AtNotch(compression, 3).formats[0];
    EXPECT_EQ(KvKeyBits(widest), std::max(8, KvKeyBits(static_cast<KvFormat>(i))));
    EXPECT_EQ(KvValueBits(widest), std::max(8, KvValueBits(static_cast<KvFormat>(i))));
  }
}

}  // namespace
}  // namespace condense
