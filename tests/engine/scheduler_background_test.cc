// The background sequence of a scheduler, and requests that are computed anew.

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/scheduler.h"
#include "tests/support/scheduler_simulation.h"

namespace condense {
namespace {

constexpr int64_t kAmple = 1 << 16;  // tokens
constexpr int64_t kTight = 4096;     // in two slabs
constexpr SchedulerOptions kNoReserve = {.step_tokens = 256, .decode_reserve_tokens = 0};

TEST(SchedulerBackgroundTest, WithoutRequestsItTakesWhatItMayAlone) {
  Simulation sim({.step_tokens = 64}, kAmple);
  sim.allowed_ = {.beside = 3, .alone = 40};
  sim.SetBackground(100, 5);
  for (const int32_t tokens : {40, 40, 20, 1, 1, 1, 1}) {
    const StepPlan plan = sim.Step();
    EXPECT_EQ(plan.background_tokens(), tokens);
    EXPECT_FALSE(plan.HasRequests());
    EXPECT_TRUE(sim.scheduler().empty());
  }
  EXPECT_EQ(sim.background_ended_, 1);
  EXPECT_EQ(sim.scheduler().background(), nullptr);
  EXPECT_EQ(sim.cache().Stats().used_bytes, 0);
  EXPECT_TRUE(sim.Step().items.empty());
}

TEST(SchedulerBackgroundTest, AStepHoldsNoMoreThanItsBudget) {
  Simulation sim({.step_tokens = 16}, kAmple);
  sim.allowed_ = {.beside = 1000, .alone = 1000};
  sim.SetBackground(100, 5);
  EXPECT_EQ(sim.Step().background_tokens(), 16);
  // A prompt that fills the step gives it its part.
  sim.Submit("r", 150, 1);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(sim.Step().background_tokens(), 1);
  EXPECT_TRUE(sim.ended_.contains("r"));
  EXPECT_EQ(sim.Step().background_tokens(), 16);
}

TEST(SchedulerBackgroundTest, BesideRequestsItTakesWhatItMayAndAtMostAnEighth) {
  Simulation sim({.step_tokens = 512}, kAmple);
  sim.SetBackground(5000, 1);
  sim.allowed_ = {.beside = 7, .alone = 64};
  sim.Submit("a", 400, 50);
  EXPECT_EQ(sim.Step().background_tokens(), 7);
  EXPECT_EQ(sim.Step().background_tokens(), 1);  // one decode
  sim.allowed_.beside = 1000;
  sim.Submit("b", 399, 50);
  const StepPlan plan = sim.Step();
  EXPECT_EQ(plan.items.size(), 3u);
  EXPECT_EQ(plan.background_tokens(), 50);
  EXPECT_EQ(sim.Step().background_tokens(), 1);
  sim.allowed_.beside = 0;
  EXPECT_FALSE(sim.Step().HasBackground());
}

TEST(SchedulerBackgroundTest, WhileARequestWaitsItGetsNothing) {
  Simulation sim({.step_tokens = 64, .max_sequences = 1}, kAmple);
  sim.allowed_ = {.beside = 8, .alone = 8};
  sim.SetBackground(1000, 1);
  sim.Submit("a", 4, 20);
  EXPECT_TRUE(sim.Step().HasBackground());
  sim.Submit("b", 4, 20);
  while (!sim.ended_.contains("a")) {
    EXPECT_FALSE(sim.Step().HasBackground());
    ASSERT_LT(sim.now() - absl::UnixEpoch(), absl::Seconds(1));
  }
  EXPECT_TRUE(sim.Step().HasBackground());
}

TEST(SchedulerBackgroundTest, WhileARequestIsDeferredItGetsNothing) {
  Simulation sim(kNoReserve, kTight);
  sim.Submit("a", 2000, 2000);
  sim.Submit("b", 2000, 2000);
  sim.relief_coming_ = true;
  while (sim.Step().deferred == 0) {
  }
  sim.allowed_ = {.beside = 8, .alone = 8};
  sim.SetBackground(10, 1);
  for (int i = 0; i < 40; ++i) {
    const StepPlan plan = sim.Step();
    EXPECT_GT(plan.deferred, 0);
    EXPECT_FALSE(plan.HasBackground());
  }
  sim.End(sim.Find("a"));
  EXPECT_TRUE(sim.Step().HasBackground());
}

TEST(SchedulerBackgroundTest, WhoWasPreemptedComesBackFirst) {
  Simulation sim(kNoReserve, kTight);
  sim.Submit("a", 2000, 1000);
  sim.Submit("b", 2000, 1000);
  while (sim.preemptions_ == 0) sim.Step();
  sim.allowed_ = {.beside = 8, .alone = 8};
  sim.SetBackground(10, 1);
  while (!sim.ended_.contains("a")) EXPECT_FALSE(sim.Step().HasBackground());
  EXPECT_TRUE(sim.Step().HasBackground());
  EXPECT_EQ(sim.Find("b")->state(), Sequence::State::kRunning);
}

TEST(SchedulerBackgroundTest, ItsRoomIsTakenBeforeAnybodyIsPreempted) {
  Simulation sim(kNoReserve, kTight);
  sim.allowed_ = {.beside = 256, .alone = 256};
  sim.SetBackground(1500, 50);
  for (int i = 0; i < 7; ++i) sim.Step();
  sim.allowed_ = {};
  EXPECT_GE(sim.scheduler().background()->computed(), 1500);
  // They fit beside each other, and what they generate does not fit beside the background.
  sim.Submit("a", 1000, 900);
  sim.Submit("b", 1000, 900);
  while (sim.scheduler().background()->preemptions() == 0) sim.Step();
  EXPECT_EQ(sim.scheduler().background()->state(), Sequence::State::kWaiting);
  EXPECT_EQ(sim.scheduler().background()->computed(), 0);
  while (sim.ended_.size() < 2) sim.Step();
  EXPECT_EQ(sim.preemptions_, 0);
  EXPECT_EQ(sim.scheduler().background()->preemptions(), 1);
}

// Relief may never come, and this room is there at once.
TEST(SchedulerBackgroundTest, ItsRoomIsTakenBeforeAnybodyIsDeferred) {
  Simulation sim(kNoReserve, kTight);
  sim.allowed_ = {.beside = 256, .alone = 256};
  sim.SetBackground(1500, 50);
  for (int i = 0; i < 7; ++i) sim.Step();
  sim.allowed_ = {};
  sim.relief_coming_ = true;
  sim.Submit("a", 2000, 1500);
  while (!sim.ended_.contains("a")) EXPECT_EQ(sim.Step().deferred, 0);
  EXPECT_EQ(sim.scheduler().background()->preemptions(), 1);
}

TEST(SchedulerBackgroundTest, ItsRoomIsTakenBeforeAnAdmissionFails) {
  Simulation sim(kNoReserve, kTight);
  sim.allowed_ = {.beside = 256, .alone = 256};
  sim.SetBackground(3000, 50);
  while (sim.scheduler().background()->computed() < 3000) sim.Step();
  sim.Submit("small", 500, 1);
  StepPlan plan = sim.Step();
  EXPECT_EQ(plan.started.size(), 1u);
  EXPECT_EQ(sim.scheduler().background()->preemptions(), 0);  // there was room for both
  sim.Submit("large", 3000, 1);
  plan = sim.Step();
  ASSERT_EQ(plan.started.size(), 1u);
  EXPECT_EQ(plan.started[0]->request().id, "large");
  EXPECT_EQ(sim.scheduler().background()->preemptions(), 1);
  EXPECT_FALSE(plan.HasBackground());
}

TEST(SchedulerBackgroundTest, SetBackItStartsAgainWhenThereIsRoomForAllOfIt) {
  Simulation sim(kNoReserve, kTight);
  sim.allowed_ = {.beside = 256, .alone = 256};
  sim.SetBackground(2000, 96);
  for (int i = 0; i < 20; ++i) sim.Step();
  // Beside these 2100 tokens there is room for its prompt alone.
  sim.Submit("a", 2100, 40);
  while (!sim.ended_.contains("a")) EXPECT_FALSE(sim.Step().HasBackground());
  EXPECT_EQ(sim.background_ended_, 0);
  const int64_t before = sim.background_tokens_;
  while (sim.background_ended_ == 0) EXPECT_TRUE(sim.Step().HasBackground());
  EXPECT_EQ(sim.background_tokens_ - before, 2095);  // the last token's row is not computed
  EXPECT_EQ(sim.cache().Stats().used_bytes, 0);
}

TEST(SchedulerBackgroundTest, ItIsRemovedInAnyState) {
  for (const int steps : {0, 1, 20}) {
    for (const bool set_back : {false, true}) {
      Simulation sim(kNoReserve, kTight);
      sim.allowed_ = {.beside = 256, .alone = 256};
      sim.SetBackground(2000, 100);
      for (int i = 0; i < steps; ++i) sim.Step();
      if (set_back) {
        sim.Submit("a", 4000, 1);
        sim.Step();
        EXPECT_EQ(sim.scheduler().background()->state(), Sequence::State::kWaiting);
      }
      Sequence* const background = sim.scheduler().background();
      const std::unique_ptr<Sequence> removed = sim.scheduler().Remove(background);
      EXPECT_EQ(removed.get(), background);
      EXPECT_EQ(removed->state(), Sequence::State::kFinished);
      EXPECT_EQ(sim.scheduler().background(), nullptr);
      while (!sim.scheduler().empty()) sim.Step();
      EXPECT_EQ(sim.cache().Stats().used_bytes, 0);
      // There may be another.
      sim.SetBackground(10, 1);
      EXPECT_TRUE(sim.Step().HasBackground());
    }
  }
}

TEST(SchedulerBackgroundTest, ItIsNoneOfTheRequests) {
  Simulation sim({.step_tokens = 64, .max_sequences = 1, .max_running_per_tenant = 1}, kAmple);
  sim.allowed_ = {.beside = 8, .alone = 8};
  sim.SetBackground(1000, 1);
  sim.Step();
  EXPECT_TRUE(sim.scheduler().empty());
  EXPECT_EQ(sim.scheduler().running(), 0);
  EXPECT_TRUE(sim.scheduler().All().empty());
  // Of its tenant, where one may run.
  sim.Submit("r", 4, 10);
  EXPECT_EQ(sim.Step().started.size(), 1u);
}

// With memory short, tenants unequal and relief that comes and goes, each step runs of requests
// what it would run without a background.
TEST(SchedulerBackgroundTest, RequestsNoticeNothing) {
  const SchedulerOptions options = {.step_tokens = 128,
                                    .max_sequences = 6,
                                    .decode_reserve_tokens = 8,
                                    .max_running_per_tenant = 3};
  Simulation with(options, kTight), without(options, kTight);
  std::mt19937 random(3);
  int submitted = 0, set_back = 0, steps = 0;
  const auto submit = [&] {
    const std::string id = std::to_string(submitted++);
    const int prompt = 1 + static_cast<int>(random() % 900), output = 1 + random() % 600;
    const int priority = static_cast<int>(random() % 3);
    const std::string tenant = random() % 2 == 0 ? "" : "b";
    for (Simulation* sim : {&with, &without}) sim->Submit(id, prompt, output, priority, tenant);
  };
  while (submitted < 600 || !without.scheduler().empty()) {
    // In waves: there is time for the background between them.
    if (submitted < 600 && random() % 400 == 0) {
      for (int i = static_cast<int>(random() % 10); i >= 0; --i) submit();
    }
    if (with.scheduler().background() == nullptr) {
      with.SetBackground(1 + static_cast<int>(random() % 2000), 1 + random() % 100);
    }
    if (random() % 8 == 0) with.relief_coming_ = without.relief_coming_ = random() % 2 == 0;
    // Beside requests it takes of full steps; not to be seen here.
    with.allowed_ = {.beside = 0, .alone = static_cast<int32_t>(1 + random() % 64)};
    const int32_t preemptions = with.scheduler().background()->preemptions();
    const StepPlan expected = without.Step(), plan = with.Step();
    ASSERT_EQ(with.ran_, without.ran_) << "step " << steps;
    ASSERT_EQ(plan.preempted, expected.preempted);
    ASSERT_EQ(plan.deferred, expected.deferred);
    if (with.scheduler().background() != nullptr) {
      set_back += with.scheduler().background()->preemptions() - preemptions;
    }
    ASSERT_LT(++steps, 100000);
  }
  EXPECT_EQ(with.ended_.size(), static_cast<size_t>(submitted));
  EXPECT_GT(with.preemptions_, 0);
  EXPECT_GT(with.background_ended_, 10);
  EXPECT_GT(set_back, 5);
}

TEST(SchedulerRebuildTest, WithoutRoomForAllOfItNothingChanges) {
  Simulation sim(kNoReserve, kTight);
  sim.Submit("a", 2500, 100);
  sim.Submit("b", 10, 100);
  for (int i = 0; i < 20; ++i) sim.Step();
  Sequence* const a = sim.Find("a");
  const int64_t computed = a->computed();
  EXPECT_FALSE(sim.scheduler().Rebuild(a));
  EXPECT_EQ(a->state(), Sequence::State::kRunning);
  EXPECT_EQ(a->computed(), computed);
  EXPECT_EQ(a->preemptions(), 0);
  EXPECT_EQ(sim.scheduler().running(), 2);
  EXPECT_EQ(sim.Step().items.size(), 2u);
}

TEST(SchedulerRebuildTest, RoomThatOthersWerePromisedIsNotThere) {
  Simulation sim({.step_tokens = 64, .decode_reserve_tokens = 0}, kTight);
  sim.Submit("a", 1200, 100);
  while (sim.Find("a")->generated() < 5) sim.Step();
  sim.Submit("b", 2000, 1);
  sim.Step();
  // 1300 and 64 tokens are held, 1900 promised.
  EXPECT_FALSE(sim.scheduler().Rebuild(sim.Find("a")));
  sim.End(sim.Find("b"));
  EXPECT_TRUE(sim.scheduler().Rebuild(sim.Find("a")));
}

TEST(SchedulerRebuildTest, ItComesBackAtOnceAndComputesEverything) {
  Simulation sim(kNoReserve, kTight);
  sim.Submit("a", 300, 50);
  sim.Submit("b", 10, 50);
  for (int i = 0; i < 20; ++i) sim.Step();
  Sequence* const a = sim.Find("a");
  const int64_t known = a->known();
  const int32_t generated = a->generated();
  ASSERT_TRUE(sim.scheduler().Rebuild(a));
  EXPECT_EQ(a->state(), Sequence::State::kWaiting);
  EXPECT_EQ(a->computed(), 0);
  EXPECT_EQ(a->preemptions(), 1);
  EXPECT_EQ(sim.scheduler().All().back(), a);
  // Nobody needed its room: no reserve grows.
  EXPECT_EQ(sim.scheduler().decode_reserve_tokens(), 0);

  StepPlan plan = sim.Step();
  EXPECT_TRUE(plan.started.empty());  // it had been, long ago
  EXPECT_EQ(plan.preempted, 0);
  EXPECT_EQ(a->state(), Sequence::State::kRunning);
  int64_t computed = plan.items.back().num_tokens;
  EXPECT_EQ(plan.items.back().sequence, a);
  EXPECT_EQ(computed, 255);  // beside one decode
  plan = sim.Step();
  computed += plan.items.back().num_tokens;
  EXPECT_EQ(computed, known);
  EXPECT_EQ(a->generated(), generated + 1);
  while (sim.ended_.size() < 2) sim.Step();
  EXPECT_EQ(sim.cache().Stats().used_bytes, 0);
}

TEST(SchedulerRebuildTest, OfEqualsThatWaitItIsTheFirst) {
  Simulation sim({.step_tokens = 64, .max_sequences = 1}, kTight);
  sim.Submit("a", 10, 50);
  for (int i = 0; i < 5; ++i) sim.Step();
  sim.Submit("b", 10, 50);
  sim.Submit("c", 10, 50);
  ASSERT_TRUE(sim.scheduler().Rebuild(sim.Find("a")));
  sim.Step();
  EXPECT_EQ(sim.Find("a")->state(), Sequence::State::kRunning);
  EXPECT_EQ(sim.scheduler().waiting(), 2);
}

TEST(SchedulerRebuildTest, TheBackgroundGivesItsRoom) {
  Simulation sim(kNoReserve, kTight);
  sim.allowed_ = {.beside = 256, .alone = 256};
  sim.SetBackground(2000, 10);
  for (int i = 0; i < 8; ++i) sim.Step();
  sim.allowed_ = {};
  sim.Submit("a", 1500, 50);
  for (int i = 0; i < 10; ++i) sim.Step();
  EXPECT_TRUE(sim.scheduler().Rebuild(sim.Find("a")));
  EXPECT_EQ(sim.scheduler().background()->preemptions(), 1);
}

TEST(SchedulerBackgroundTest, ItStartsAndStaysWhileTheArenaHasRoom) {
  SchedulerOptions options = kNoReserve;
  options.background_starts_below = 0.5;
  options.background_leaves_above = 0.7;
  Simulation sim(options, kTight);
  sim.allowed_ = {.beside = 256, .alone = 256};
  sim.SetBackground(3000, 10);  // of 4096
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(sim.Step().HasBackground());
  sim.scheduler().Remove(sim.scheduler().background());
  sim.SetBackground(1500, 400);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(sim.Step().HasBackground());
  // What holds more than two thirds with it comes before it.
  sim.Submit("a", 1800, 40);
  while (!sim.ended_.contains("a")) sim.Step();
  EXPECT_EQ(sim.scheduler().background()->preemptions(), 1);
  EXPECT_EQ(sim.preemptions_, 0);
}

}  // namespace
}  // namespace condense
