// What noise, and readings of every kind, can do to a Guardrail, in simulated time.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "engine/quality/guardrail.h"
#include "engine/quality/sliding_mean.h"
#include "engine/quality/sliding_quantile.h"
#include "tests/engine/quality/guardrail_driver.h"

namespace condense {
namespace {

const double kConfidence = GuardrailLimits().confidence;

using Source = std::function<double()>;

// One window's reading of `count` fresh samples.
Reading OfMean(int count, const Source& value, const Source& weight) {
  SlidingMean mean(absl::Seconds(60), 1);
  for (int i = 0; i < count; ++i) CHECK(mean.Add(absl::UnixEpoch(), value(), weight()));
  return *MeanReading(mean, absl::UnixEpoch(), kConfidence);
}

Reading OfShare(int count, double recall, int facts, std::mt19937* random) {
  std::binomial_distribution<int> kept(facts, recall);
  SlidingMean mean(absl::Seconds(60), 1);
  for (int i = 0; i < count; ++i) {
    CHECK(mean.Add(absl::UnixEpoch(), static_cast<double>(kept(*random)) / facts, facts));
  }
  return *ShareReading(mean, absl::UnixEpoch(), kConfidence);
}

Reading OfQuantile(int count, double level, const QuantileScale& scale, const Source& value) {
  SlidingQuantile quantile(absl::Seconds(60), scale, 1);
  for (int i = 0; i < count; ++i) CHECK(quantile.Add(absl::UnixEpoch(), value()));
  return *QuantileReading(quantile, level, absl::UnixEpoch(), kConfidence);
}

// Everything is healthy, each truth at most a fifth of the way from its warning level, and noisy
// as few samples make it.
class HealthyTraffic {
 public:
  explicit HealthyTraffic(uint32_t seed) : random_(seed) {}

  Readings Window() {
    Readings readings;
    readings[Guard::kHitRatio] = OfMean(40, Share(0.96, 0.03), Ones());
    // The 5th percentile lies 1.645 deviations below the mean: 0.83.
    readings[Guard::kHitRatioTail] =
        OfQuantile(120, 0.05, QuantileScale::Share(), Share(0.912, 0.05));
    // The 99th percentile lies 2.326 deviations above: 0.8 ms.
    readings[Guard::kMergeLatency] = OfQuantile(150, 0.99, QuantileScale::Latency(), [this] {
      return 8e-4 * std::exp(0.5 * (z() - 2.326));
    });
    readings[Guard::kMemoryFluctuation] =
        OfQuantile(30, 0.95, {.lowest = 0, .highest = 1, .num_bins = 400},
                   [this] { return 0.04 * std::exp(0.3 * (z() - 1.645)); });
    readings[Guard::kDrift] = OfMean(
        12, [this] { return 0.008 + 0.03 * z(); },
        [this] { return std::floor(std::exp(4.5 + 0.7 * z())) + 8; });
    readings[Guard::kCanary] = OfShare(8, 0.96, 4, &random_);
    readings[Guard::kFirstToken] = OfMean(
        40, [this] { return 0.055 + 0.2 * z(); }, Ones());
    readings[Guard::kMemory] = Reading{.value = 0.84 + 0.01 * z(), .samples = 1};
    return readings;
  }

 private:
  double z() { return normal_(random_); }
  Source Share(double mean, double deviation) {
    return [=, this] { return std::clamp(mean + deviation * z(), 0.0, 1.0); };
  }
  static Source Ones() {
    return [] { return 1.0; };
  }

  std::mt19937 random_;
  std::normal_distribution<double> normal_{0, 1};
};

class GuardrailNoiseTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(GuardrailNoiseTest, AThousandHealthyWindowsChangeNothing) {
  HealthyTraffic traffic(GetParam());
  GuardrailDriver driver;
  int noisy = 0;
  for (int window = 0; window < 1000; ++window) {
    const Readings readings = traffic.Window();
    driver.Run(1, readings);
    ASSERT_EQ(driver.decision().ratio_notches, 0) << window;
    ASSERT_EQ(driver.mode(), GuardrailMode::kCompacting) << window << driver.decision().text;
    noisy += readings[Guard::kDrift]->value > driver.limits().drift.warning ? 1 : 0;
    noisy += readings[Guard::kDrift]->value > driver.limits().drift.limit ? 1 : 0;
  }
  EXPECT_EQ(driver.guardrail().num_transitions(), 0);
  // The noise is such that values alone would have warned, often.
  EXPECT_GT(noisy, 300);
}

INSTANTIATE_TEST_SUITE_P(Seeds, GuardrailNoiseTest, ::testing::Values(1, 2, 3, 4));

// Windows that overlap: what one says the next repeats, so windows in a row are no safeguard.
TEST(GuardrailNoiseSlidingTest, ADriftThatSlidesThroughItsWindowChangesNothing) {
  std::mt19937 random(21);
  std::normal_distribution<double> z;
  GuardrailDriver driver;
  SlidingMean drift(driver.limits().drift.window);
  for (int window = 0; window < 1000; ++window) {
    const double tokens = std::floor(std::exp(4.5 + 0.7 * z(random))) + 8;
    ASSERT_TRUE(drift.Add(driver.now(), 0.006 + 0.03 * z(random), tokens));
    Readings readings;
    readings[Guard::kDrift] = DriftReading(drift, driver.now(), kConfidence);
    driver.Run(1, readings);
    ASSERT_EQ(driver.mode(), GuardrailMode::kCompacting) << window << driver.decision().text;
  }
}

TEST(GuardrailNoiseSlidingTest, ARealDriftIsFound) {
  std::mt19937 random(22);
  std::normal_distribution<double> z;
  GuardrailDriver driver;
  SlidingMean drift(driver.limits().drift.window);
  int window = 0;
  while (window < 200 && driver.mode() != GuardrailMode::kUncompressed) {
    ASSERT_TRUE(drift.Add(driver.now(), 0.06 + 0.03 * z(random), 100));
    Readings readings;
    readings[Guard::kDrift] = DriftReading(drift, driver.now(), kConfidence);
    driver.Run(1, readings);
    ++window;
  }
  EXPECT_EQ(driver.mode(), GuardrailMode::kUncompressed);
  EXPECT_LE(window, 40);
}

// A guardrail whose true value sits exactly on an edge, read without any bound: the worst of noise.
struct EdgeOfNoise {
  const char* name;
  Guard guard;
  double centre, deviation;
  bool silent_without_jobs;  // nothing is measured while nothing new is compacted
};

class GuardrailFlapTest : public ::testing::TestWithParam<EdgeOfNoise> {};

// Runs an hour of windows; its transitions.
int64_t RunHour(const EdgeOfNoise& edge, std::mt19937* random, GuardrailDriver* driver,
                absl::Duration* longest) {
  std::normal_distribution<double> noise(edge.centre, edge.deviation);
  const int64_t before = driver->guardrail().num_transitions();
  for (int window = 0; window < 360; ++window) {
    const double value = noise(*random);
    Readings readings;
    if (driver->decision().new_jobs || !edge.silent_without_jobs) {
      readings[edge.guard] = Reading{.value = value, .samples = 1000};
      if (TraitsOf(edge.guard).needs_bound) {
        readings[edge.guard]->lower = readings[edge.guard]->upper = value;
      }
    }
    driver->Run(1, readings);
    *longest = std::max(*longest, driver->decision().dwell);
  }
  return driver->guardrail().num_transitions() - before;
}

TEST_P(GuardrailFlapTest, TransitionsPerHourAreFewAndDwellsDouble) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    std::mt19937 random(seed);
    GuardrailDriver driver;
    absl::Duration longest;
    for (int hour = 0; hour < 24; ++hour) {
      // Dwells of 0.5, 1, 2, 4, 8, 16 and 30 minutes fill the first hour; later ones begin with
      // 8 minutes at least, unless noise rested for long.
      EXPECT_LE(RunHour(GetParam(), &random, &driver, &longest), hour == 0 ? 14 : 8)
          << "hour " << hour << " seed " << seed;
    }
    EXPECT_GT(driver.guardrail().flaps(), 5) << seed;
    EXPECT_EQ(longest, driver.limits().max_dwell) << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Edges, GuardrailFlapTest,
    ::testing::Values(EdgeOfNoise{"latency_warning", Guard::kMergeLatency, 1e-3, 3e-4, false},
                      EdgeOfNoise{"drift_warning", Guard::kDrift, 0.01, 0.003, true},
                      EdgeOfNoise{"drift_limit", Guard::kDrift, 0.02, 0.01, true},
                      EdgeOfNoise{"hit_ratio_limit", Guard::kHitRatio, 0.85, 0.05, true},
                      EdgeOfNoise{"fluctuation_limit", Guard::kMemoryFluctuation, 0.1, 0.05,
                                  false}),
    [](const auto& info) { return info.param.name; });

// Any readings at all: only the edges of the design, and outputs that fit their mode.
class AnyReadings {
 public:
  explicit AnyReadings(uint32_t seed) : random_(seed) {}

  // Levels change seldom, so that streaks are long enough to count.
  const Readings& Next(const GuardrailLimits& limits, bool only_latency) {
    for (const Guard guard : AllGuards()) {
      if (random_() % 8 != 0) continue;
      if (only_latency && TraitsOf(guard).effect != GuardEffect::kLatency) continue;
      const uint32_t kind = random_() % 64;
      const GuardLevel level = kind < 60   ? GuardLevel::kClear
                               : kind < 62 ? GuardLevel::kWarning
                                           : GuardLevel::kBroken;
      readings_[guard] = ReadingAt(limits, guard, level);
      if (kind < 6) readings_[guard] = std::nullopt;
    }
    return readings_;
  }

 private:
  std::mt19937 random_;
  Readings readings_;
};

void ExpectOutputsFit(const GuardrailDriver& driver) {
  const GuardrailDecision& d = driver.decision();
  const bool off = d.mode == GuardrailMode::kUncompressed;
  ASSERT_EQ(d.compacted_share == 0, off);
  ASSERT_EQ(d.compacted_share == 1,
            d.mode == GuardrailMode::kCompacting || d.mode == GuardrailMode::kHolding);
  if (d.mode != GuardrailMode::kProbation) {
    ASSERT_EQ(d.new_jobs, d.mode == GuardrailMode::kCompacting);
  }
  ASSERT_GE(d.ratio_notches, d.mode == GuardrailMode::kProbation ? 1 : -driver.limits().max_raised);
  ASSERT_LE(d.ratio_notches, driver.limits().max_notches);
  ASSERT_LE(d.dwell, driver.limits().max_dwell);
  ASSERT_FALSE(d.text.empty());
}

TEST(GuardrailFuzzTest, OnlyTheEdgesOfTheDesignAreTaken) {
  int64_t seen[kNumGuardrailModes][kNumGuardrailModes] = {};
  for (uint32_t seed = 0; seed < 8; ++seed) {
    AnyReadings any(seed);
    GuardrailDriver driver;
    for (int window = 0; window < 3000; ++window) {
      driver.Run(1, any.Next(driver.limits(), false));
      ASSERT_NO_FATAL_FAILURE(ExpectOutputsFit(driver)) << seed << ' ' << window;
    }
    for (int from = 0; from < kNumGuardrailModes; ++from) {
      for (int to = 0; to < kNumGuardrailModes; ++to) {
        seen[from][to] += driver.guardrail().num_transitions(static_cast<GuardrailMode>(from),
                                                             static_cast<GuardrailMode>(to));
      }
    }
  }
  // Rows and columns: compacting, holding, uncompressed, probation. With the default counts a
  // warning always comes first, so compacting never goes straight to uncompressed.
  const bool allowed[kNumGuardrailModes][kNumGuardrailModes] = {
      {false, true, false, false},
      {true, false, true, false},
      {false, false, false, true},
      {true, false, true, false},
  };
  for (int from = 0; from < kNumGuardrailModes; ++from) {
    for (int to = 0; to < kNumGuardrailModes; ++to) {
      EXPECT_EQ(seen[from][to] > 0, allowed[from][to]) << from << " to " << to;
    }
  }
}

TEST(GuardrailFuzzTest, LatencyAloneNeverSwitchesOff) {
  AnyReadings any(77);
  GuardrailDriver driver;
  for (int window = 0; window < 5000; ++window) {
    driver.Run(1, any.Next(driver.limits(), true));
    ASSERT_NE(driver.mode(), GuardrailMode::kUncompressed);
    ASSERT_NE(driver.mode(), GuardrailMode::kProbation);
  }
  EXPECT_GT(driver.guardrail().num_transitions(), 4);
}

}  // namespace
}  // namespace condense
