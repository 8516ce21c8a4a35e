#include "engine/quality/added_time.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <vector>

#include "cache/step_allowance.h"

namespace condense {
namespace {

constexpr int kCycle = 8;
constexpr absl::Duration kMs = absl::Milliseconds(1);

// Readings of `cycles` cycles of steps that take 40 ms, under the worker's real allowance of 1 ms.
// `spends`: what it takes in a step, which it does not begin before the allowance lets it.
std::vector<absl::Duration> Read(int cycles, absl::Duration thread_time,
                                 const std::function<absl::Duration(int step)>& spends,
                                 bool waits = true) {
  StepAllowance allowance({.per_step = std::chrono::milliseconds(1), .share = 0.0});
  AddedTime added_time;
  std::vector<absl::Duration> readings;
  const StepAllowance::Time start(std::chrono::hours(1));
  for (int step = 0; step < cycles * kCycle; ++step) {
    const auto owed = allowance.Begin(start + step * std::chrono::milliseconds(40), {});
    if (!waits || allowance.Next() == StepAllowance::Time::min()) {
      allowance.Spend(absl::ToChronoNanoseconds(spends(step)));
    }
    const std::optional<absl::Duration> added =
        added_time.Observe({.thread_time = thread_time,
                            .owed = absl::FromChrono(owed),
                            .cycle_end = step % kCycle == kCycle - 1});
    EXPECT_EQ(added.has_value(), step % kCycle == kCycle - 1);
    if (added.has_value()) readings.push_back(*added);
  }
  return readings;
}

TEST(AddedTimeTest, AWorkerWithinItsAllowanceAddsNothing) {
  for (const absl::Duration added : Read(10, {}, [](int) { return 0.9 * kMs; })) {
    EXPECT_EQ(added, absl::ZeroDuration());
  }
}

// Wherever in the cycle it comes, and with whatever went before.
TEST(AddedTimeTest, ALumpThatIsPaidBackWithinACycleAddsNothing) {
  for (const absl::Duration before : {0.0 * kMs, 0.9 * kMs}) {
    for (int at = 0; at < kCycle; ++at) {
      const auto lumps = [=](int step) { return step % kCycle == at ? 6 * kMs : before; };
      for (const absl::Duration added : Read(20, {}, lumps)) {
        EXPECT_EQ(added, absl::ZeroDuration()) << at;
      }
    }
  }
}

TEST(AddedTimeTest, OfALumpCountsWhatACycleCannotPayBack) {
  const std::vector<absl::Duration> readings =
      Read(6, {}, [](int step) { return step == 0 ? 41 * kMs : absl::ZeroDuration(); });
  // Owed after each step: 40, 39, ...; seen from the second step on, when the first cycle has seen
  // a step that owed nothing.
  EXPECT_EQ(readings[0], absl::ZeroDuration());
  EXPECT_EQ(readings[1], 26 * kMs / kCycle);
  for (size_t i = 2; i < readings.size(); ++i) EXPECT_EQ(readings[i], absl::ZeroDuration());
}

TEST(AddedTimeTest, AWorkerThatOverdrawsForeverReadsItsOverdraft) {
  const std::vector<absl::Duration> readings = Read(
      50, {}, [](int) { return 3.5 * kMs; }, /*waits=*/false);
  for (size_t i = 1; i < readings.size(); ++i) EXPECT_EQ(readings[i], 2.5 * kMs) << i;
}

TEST(AddedTimeTest, TheEngineThreadsTimeCountsInFull) {
  for (const absl::Duration added : Read(10, 5 * kMs, [](int) { return absl::ZeroDuration(); })) {
    EXPECT_EQ(added, 5 * kMs);
  }
}

TEST(AddedTimeTest, OnAverageOverTheStepsOfTheCycle) {
  AddedTime added_time;
  added_time.Observe({.thread_time = 8 * kMs});
  added_time.Observe({});
  added_time.Observe({});
  EXPECT_EQ(added_time.Observe({.cycle_end = true}), 2 * kMs);
  EXPECT_EQ(added_time.Observe({.cycle_end = true}), absl::ZeroDuration());
}

}  // namespace
}  // namespace condense
