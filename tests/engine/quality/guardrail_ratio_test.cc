// How guardrails move the target ratio: up while memory is short, down while quality warns.

#include <gtest/gtest.h>

#include <vector>

#include "engine/quality/guardrail.h"
#include "tests/engine/quality/guardrail_driver.h"

namespace condense {
namespace {

constexpr auto kCompacting = GuardrailMode::kCompacting;
constexpr auto kHolding = GuardrailMode::kHolding;
constexpr auto kUncompressed = GuardrailMode::kUncompressed;
constexpr auto kProbation = GuardrailMode::kProbation;
constexpr auto kClear = GuardLevel::kClear;
constexpr auto kWarning = GuardLevel::kWarning;
constexpr auto kBroken = GuardLevel::kBroken;

TEST(GuardrailRatioTest, MemoryLetsTheRatioRiseWhileQualityIsClear) {
  GuardrailDriver driver;
  driver.Run(1, driver.With(Guard::kMemory, kWarning));
  EXPECT_FALSE(driver.decision().ratio_may_rise);
  for (const GuardLevel level : {kWarning, kBroken}) {
    driver.Run(driver.limits().warning_windows, driver.With(Guard::kMemory, level));
    EXPECT_TRUE(driver.decision().ratio_may_rise);
    EXPECT_EQ(driver.mode(), kCompacting);
  }
  Readings readings = driver.With(Guard::kMemory, kBroken);
  driver.Run(driver.limits().warning_windows, driver.With(readings, Guard::kHitRatio, kWarning));
  EXPECT_EQ(driver.mode(), kHolding);
  EXPECT_FALSE(driver.decision().ratio_may_rise);
  driver.RunUntil(kCompacting, 100, readings);
  EXPECT_TRUE(driver.decision().ratio_may_rise);
  driver.Run(3, driver.Clear());
  EXPECT_FALSE(driver.decision().ratio_may_rise);
}

TEST(GuardrailRatioTest, NotEvenAForcedModeLetsTheRatioRiseWhileQualityWarns) {
  GuardrailDriver driver;
  driver.guardrail().Force(kCompacting, driver.now());
  driver.Run(10, driver.With(Guard::kMemory, kBroken));
  EXPECT_TRUE(driver.decision().ratio_may_rise);
  Readings readings = driver.With(Guard::kMemory, kBroken);
  driver.Run(10, driver.With(readings, Guard::kCanary, kWarning));
  EXPECT_FALSE(driver.decision().ratio_may_rise);
}

// Windows of one kind after the other, and the notches after them.
struct Spell {
  GuardLevel memory;
  GuardLevel hit_ratio;
  int windows;
  int32_t notches;
};

TEST(GuardrailRatioTest, MemoryRaisesTheRatioByANotchPerWindowAndGivesItBack) {
  // A level takes three windows to begin or to end.
  const std::vector<std::vector<Spell>> tables = {
      {{kWarning, kClear, 2, 0},
       {kWarning, kClear, 1, -1},
       {kWarning, kClear, 2, -3},
       {kWarning, kClear, 50, -4},  // and no further
       {kClear, kClear, 2, -4},
       {kClear, kClear, 1, -3},
       {kClear, kClear, 2, -1},
       {kClear, kClear, 50, 0}},
      // Beyond its limit it is memory all the same.
      {{kBroken, kClear, 4, -2}},
      // Quality takes it back at once, and more.
      {{kBroken, kClear, 6, -4},
       {kBroken, kWarning, 2, -4},
       {kBroken, kWarning, 1, 1},
       {kBroken, kWarning, 6, 2},
       // It was lowered for quality: it rises to its target, not beyond.
       {kBroken, kClear, 3, 1},
       {kBroken, kClear, 1, 0},
       {kBroken, kClear, 20, 0}},
      {{kClear, kWarning, 3, 1}, {kBroken, kWarning, 3, 1}, {kClear, kClear, 3, 1}},
  };
  for (const std::vector<Spell>& table : tables) {
    GuardrailDriver driver;
    for (const Spell& spell : table) {
      const Readings readings = driver.With(Guard::kMemory, spell.memory);
      driver.Run(spell.windows, driver.With(readings, Guard::kHitRatio, spell.hit_ratio));
      EXPECT_EQ(driver.decision().ratio_notches, spell.notches)
          << &table - tables.data() << " " << &spell - table.data();
    }
  }
}

TEST(GuardrailRatioTest, WhileLatencyHoldsTheRatioRisesNoFurtherThanItsTarget) {
  GuardrailDriver driver;
  const Readings full = driver.With(Guard::kMemory, kBroken);
  driver.Run(10, full);
  ASSERT_EQ(driver.decision().ratio_notches, -4);
  driver.Run(10, driver.With(full, Guard::kFirstToken, kWarning));
  ASSERT_EQ(driver.mode(), kHolding);
  EXPECT_EQ(driver.decision().ratio_notches, 0);
}

TEST(GuardrailRatioTest, NoRaisedRatioOutlivesAFallback) {
  GuardrailDriver driver;
  driver.Run(10, driver.With(Guard::kMemory, kBroken));
  driver.Run(4,
             driver.With(driver.With(Guard::kMemory, kBroken), Guard::kMemoryFluctuation, kBroken));
  ASSERT_EQ(driver.mode(), kUncompressed);
  EXPECT_EQ(driver.decision().ratio_notches, 1);
  ASSERT_GT(driver.RunUntil(kProbation, 100, Readings()), 0);
  EXPECT_EQ(driver.decision().ratio_notches, 1);
}

TEST(GuardrailRatioTest, ALastingQualityWarningLowersTheRatioStepByStep) {
  GuardrailDriver driver;
  const Readings readings = driver.With(Guard::kCanary, kWarning);
  driver.Run(driver.limits().warning_windows, readings);
  EXPECT_EQ(driver.decision().ratio_notches, 1);
  driver.Run(driver.limits().widen_windows - 1, readings);
  EXPECT_EQ(driver.decision().ratio_notches, 1);
  driver.Run(1, readings);
  EXPECT_EQ(driver.decision().ratio_notches, 2);
  driver.Run(1000, readings);
  EXPECT_EQ(driver.decision().ratio_notches, driver.limits().max_notches);
  EXPECT_EQ(driver.mode(), kHolding);
}

TEST(GuardrailRatioTest, TheRatioComesBackStepByStep) {
  GuardrailDriver driver;
  driver.Run(driver.limits().warning_windows + driver.limits().widen_windows,
             driver.With(Guard::kCanary, kWarning));
  ASSERT_EQ(driver.decision().ratio_notches, 2);
  ASSERT_GT(driver.RunUntil(kCompacting, 100, driver.Clear()), 0);
  const int per_notch =
      static_cast<int>(driver.limits().restore_after / driver.limits().evaluation_window);
  driver.Run(per_notch - 1, driver.Clear());
  EXPECT_EQ(driver.decision().ratio_notches, 2);
  driver.Run(1, driver.Clear());
  EXPECT_EQ(driver.decision().ratio_notches, 1);
  driver.Run(per_notch, driver.Clear());
  EXPECT_EQ(driver.decision().ratio_notches, 0);
  driver.Run(per_notch, driver.Clear());
  EXPECT_EQ(driver.decision().ratio_notches, 0);
}

}  // namespace
}  // namespace condense
