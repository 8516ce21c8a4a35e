#include "cache/step_allowance.h"

#include <gtest/gtest.h>

namespace condense {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using Time = StepAllowance::Time;

constexpr PaceLimits kLimits{.per_step = milliseconds(2), .share = 0.1};
const Time kStart = Time(hours(1000));

TEST(StepAllowanceTest, BeforeTheFirstStepThereIsNoLimit) {
  StepAllowance allowance(kLimits);
  allowance.Spend(hours(1));
  EXPECT_EQ(allowance.Next(), Time::min());
}

TEST(StepAllowanceTest, WhatWasSpentBeforeTheFirstStepDoesNotCount) {
  StepAllowance allowance(kLimits);
  allowance.Spend(hours(1));
  allowance.Begin(kStart, milliseconds(0));
  EXPECT_EQ(allowance.Next(), Time::min());
}

TEST(StepAllowanceTest, ASmallPartOfAStepIsAllowedAtOnceAndAShareOfALongOneLater) {
  StepAllowance allowance(kLimits);
  allowance.Begin(kStart, milliseconds(0));
  allowance.Spend(microseconds(1999));
  EXPECT_EQ(allowance.Next(), Time::min());
  allowance.Spend(microseconds(1));
  EXPECT_EQ(allowance.Next(), kStart + milliseconds(20));
  allowance.Spend(milliseconds(3));
  EXPECT_EQ(allowance.Next(), kStart + milliseconds(50));
}

TEST(StepAllowanceTest, WhatTheStepSavesComesOnTop) {
  StepAllowance allowance(kLimits);
  allowance.Begin(kStart, milliseconds(7));
  allowance.Spend(microseconds(8999));
  EXPECT_EQ(allowance.Next(), Time::min());
  allowance.Spend(microseconds(1001));
  EXPECT_EQ(allowance.Next(), kStart + milliseconds(30));
}

TEST(StepAllowanceTest, TheNextStepPaysForWhatWasTakenTooMuch) {
  StepAllowance allowance(kLimits);
  allowance.Begin(kStart, milliseconds(0));
  allowance.Spend(milliseconds(7));
  // Of this step 4 ms were allowed, 3 are left to pay.
  EXPECT_EQ(allowance.Begin(kStart + milliseconds(40), milliseconds(0)), milliseconds(3));
  EXPECT_EQ(allowance.Next(), kStart + milliseconds(40 + 30));
  // 2 of those are paid by this one.
  EXPECT_EQ(allowance.Begin(kStart + milliseconds(50), milliseconds(0)), milliseconds(1));
  EXPECT_EQ(allowance.Next(), Time::min());
  allowance.Spend(milliseconds(1));
  EXPECT_EQ(allowance.Next(), kStart + milliseconds(50 + 20));
}

TEST(StepAllowanceTest, WhatWasNotTakenIsNotSavedUp) {
  StepAllowance allowance(kLimits);
  for (int step = 0; step < 10; ++step) {
    allowance.Begin(kStart + step * milliseconds(100), milliseconds(5));
  }
  allowance.Begin(kStart + milliseconds(1000), milliseconds(0));
  allowance.Spend(milliseconds(2));
  EXPECT_EQ(allowance.Next(), kStart + milliseconds(1020));
}

TEST(StepAllowanceTest, LiftingForgivesUntilTheNextStep) {
  StepAllowance allowance(kLimits);
  allowance.Begin(kStart, milliseconds(0));
  allowance.Spend(milliseconds(500));
  allowance.Lift();
  EXPECT_EQ(allowance.Next(), Time::min());
  allowance.Spend(milliseconds(500));
  EXPECT_EQ(allowance.Begin(kStart + milliseconds(1), milliseconds(0)), milliseconds(0));
  EXPECT_EQ(allowance.Next(), Time::min());
  allowance.Spend(milliseconds(2));
  EXPECT_EQ(allowance.Next(), kStart + milliseconds(21));
}

TEST(StepAllowanceTest, WithoutAShareOnlyTheNextStepBringsMore) {
  StepAllowance allowance({.per_step = milliseconds(2), .share = 0.0});
  allowance.Begin(kStart, milliseconds(0));
  allowance.Spend(milliseconds(2));
  EXPECT_EQ(allowance.Next(), Time::max());
  allowance.Begin(kStart + milliseconds(5), milliseconds(0));
  EXPECT_EQ(allowance.Next(), Time::min());
}

TEST(StepAllowanceTest, AShareOfOneIsNoLimit) {
  StepAllowance allowance({.per_step = milliseconds(2), .share = 1.0});
  allowance.Begin(kStart, milliseconds(0));
  allowance.Spend(hours(1));
  EXPECT_EQ(allowance.Next(), Time::min());
}

TEST(StepAllowanceTest, ATinyShareIsNeverRatherThanBeyondTheClock) {
  StepAllowance allowance({.per_step = milliseconds(2), .share = 1e-300});
  allowance.Begin(kStart, milliseconds(0));
  allowance.Spend(milliseconds(2));
  EXPECT_EQ(allowance.Next(), Time::max());
}

}  // namespace
}  // namespace condense
