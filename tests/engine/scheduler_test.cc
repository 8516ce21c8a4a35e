#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/support/scheduler_simulation.h"

namespace condense {
namespace {

TEST(SchedulerTest, DecodesGoFirstAndPromptsTakeTheRest) {
  Simulation sim({.step_tokens = 16}, 1 << 16);
  sim.Submit("a", 4, 100);
  sim.Step();
  sim.Submit("b", 100, 10);
  const StepPlan plan = sim.Step();
  ASSERT_EQ(plan.items.size(), 2u);
  EXPECT_EQ(plan.items[0].sequence->request().id, "a");
  EXPECT_EQ(plan.items[0].num_tokens, 1);
  EXPECT_EQ(plan.items[1].num_tokens, 15);
}

TEST(SchedulerTest, AShortPromptDoesNotWaitForALongOne) {
  Simulation sim({.step_tokens = 64}, 1 << 16);
  sim.Submit("long", 6000, 1);
  sim.Step();
  sim.Submit("short", 20, 1);
  sim.Step();
  EXPECT_TRUE(sim.ended_.contains("short"));
  EXPECT_FALSE(sim.ended_.contains("long"));
}

TEST(SchedulerTest, TheOldestPromptKeepsHalfOfTheBudget) {
  Simulation sim({.step_tokens = 64}, 1 << 16);
  sim.Submit("long", 640, 1);
  int steps = 0;
  while (!sim.ended_.contains("long")) {
    for (int i = 0; i < 3; ++i)
      sim.Submit("s" + std::to_string(steps) + "." + std::to_string(i), 30, 1);
    sim.Step();
    ASSERT_LT(++steps, 25);
  }
}

TEST(SchedulerTest, HigherPriorityIsAdmittedFirst) {
  Simulation sim({.step_tokens = 64, .max_sequences = 1}, 1 << 16);
  sim.Submit("first", 4, 5);
  sim.Step();
  sim.Submit("low", 4, 1, -1);
  sim.Submit("high", 4, 1, 1);
  while (sim.ended_.size() < 3) sim.Step();
  EXPECT_LT(sim.ended_at_["high"], sim.ended_at_["low"]);
}

TEST(SchedulerTest, WaitingRaisesAPriorityInTheEnd) {
  Simulation sim({.step_tokens = 64, .max_sequences = 1, .aging = absl::Seconds(1)}, 1 << 16);
  sim.Submit("low", 4, 1, 0);
  // A steady stream of requests of priority 3, each of which takes a slot for 10 steps.
  int i = 0;
  sim.Submit("h0", 4, 10, 3);
  while (!sim.ended_.contains("low")) {
    if (sim.scheduler().waiting() < 3) sim.Submit("h" + std::to_string(++i), 4, 10, 3);
    sim.Step();
    ASSERT_LT(sim.now() - absl::UnixEpoch(), absl::Seconds(6)) << "starved";
  }
  EXPECT_GT(sim.Waited("low"), absl::Seconds(2));
}

TEST(SchedulerTest, TenantsShareAdmissionsWhateverTheirQueues) {
  Simulation sim({.step_tokens = 64, .max_sequences = 2}, 1 << 16);
  for (int i = 0; i < 60; ++i) sim.Submit("big" + std::to_string(i), 30, 10, 0, "big");
  for (int i = 0; i < 10; ++i) sim.Submit("small" + std::to_string(i), 30, 10, 0, "small");
  int small_done = 0, big_done = 0;
  while (small_done < 10) {
    sim.Step();
    small_done = big_done = 0;
    for (const std::string& id : sim.ended_) ++(id[0] == 's' ? small_done : big_done);
  }
  EXPECT_LE(big_done, 13);
}

TEST(SchedulerTest, ATenantsOwnLimitHoldsBackOnlyThatTenant) {
  Simulation sim({.step_tokens = 64, .max_sequences = 8, .max_running_per_tenant = 1}, 1 << 16);
  for (int i = 0; i < 3; ++i) sim.Submit("a" + std::to_string(i), 4, 50, 0, "a");
  sim.Submit("b0", 4, 50, 0, "b");
  sim.Step();
  EXPECT_EQ(sim.scheduler().running(), 2);
}

TEST(SchedulerTest, AdmissionKeepsRoomForWhatRunningSequencesKnow) {
  Simulation sim({.step_tokens = 64, .decode_reserve_tokens = 0}, 4096);
  for (int i = 0; i < 4; ++i) sim.Submit("p" + std::to_string(i), 1500, 1);
  while (sim.ended_.size() < 4) sim.Step();
  EXPECT_EQ(sim.preemptions_, 0);
}

TEST(SchedulerTest, PreemptionTakesTheNewestOfTheLowestPriority) {
  Simulation sim({.step_tokens = 256, .decode_reserve_tokens = 0}, 4096);
  sim.Submit("old", 1000, 3000, 1);
  sim.Submit("mid", 1000, 500, 1);
  sim.Submit("low", 1000, 500, 0);
  std::string first_preempted;
  for (int i = 0; i < 20000 && sim.ended_.size() < 3; ++i) {
    const StepPlan plan = sim.Step();
    if (plan.preempted > 0 && first_preempted.empty()) {
      for (const Sequence* sequence : sim.scheduler().All()) {
        if (sequence->preemptions() > 0) first_preempted = sequence->request().id;
      }
    }
  }
  EXPECT_EQ(first_preempted, "low");
  EXPECT_EQ(sim.ended_.size(), 3u);
}

// Many requests through an arena that is far too small: all end once, nobody starves, recomputation
// stays bounded.
TEST(SchedulerTest, TenThousandRequestsUnderPressure) {
  Simulation sim({.step_tokens = 256, .max_sequences = 32, .decode_reserve_tokens = 16}, 6144);
  std::mt19937 random(7);
  int submitted = 0;
  int64_t tokens_needed = 0;
  std::set<std::string> cancelled;
  constexpr int kRequests = 10000;
  while (submitted < kRequests || !sim.scheduler().empty()) {
    for (int i = 0; i < 4 && submitted < kRequests && sim.scheduler().waiting() < 200;
         ++i, ++submitted) {
      const int prompt = random() % 20 == 0 ? 1000 + random() % 2000 : 1 + random() % 100;
      const int output = 1 + random() % 60;
      tokens_needed += prompt + output;
      sim.Submit(std::to_string(submitted), prompt, output, static_cast<int>(random() % 3) - 1,
                 "tenant" + std::to_string(random() % 5));
    }
    sim.Step();
    if (random() % 10 == 0 && !sim.scheduler().empty()) {
      const std::vector<Sequence*> all = sim.scheduler().All();
      sim.End(all[random() % all.size()]);
    }
    ASSERT_LT(sim.now() - absl::UnixEpoch(), absl::Hours(2));
  }
  EXPECT_EQ(sim.ended_.size(), static_cast<size_t>(kRequests));
  EXPECT_EQ(sim.cache().Stats().used_bytes, 0);
  int64_t run = 0;
  for (const auto& [tenant, tokens] : sim.tokens_) run += tokens;
  EXPECT_LT(run, tokens_needed * 5 / 4) << "preemption storms recompute too much";
  // 200 waiting requests of about 160 tokens at 256 tokens per 10 ms step are about 1.3 s of work.
  for (const auto& [id, started] : sim.started_at_)
    EXPECT_LT(sim.Waited(id), absl::Seconds(60)) << id;
}

// Sliding windows scatter a sequence's blocks over more slabs than they fill; the last one left
// must still get through.
TEST(SchedulerTest, WindowedLayersUnderPressureEndEveryRequest) {
  KvLayout layout{
      .num_layers = 34, .num_kv_heads = 1, .block = {.head_dim = 8, .block_tokens = 32}};
  for (int layer = 0; layer < 34; ++layer) layout.layer_window.push_back(layer % 7 == 6 ? 0 : 1024);
  for (uint32_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Simulation sim(
        {.step_tokens = seed % 2 ? 64 : 16, .max_sequences = 8, .decode_reserve_tokens = 0}, layout,
        int64_t{seed % 3 ? 190 : 160} * layout.slab_bytes());
    const int longest =
        static_cast<int>(std::min<int64_t>(sim.cache().max_sequence_tokens(), 12000));
    for (int i = 0; i < 40; ++i) {
      const int prompt = 1 + static_cast<int>(random() % (longest / 2));
      sim.Submit(std::to_string(i), prompt,
                 1 + static_cast<int>(random() % std::min(1500, longest - prompt)));
    }
    while (!sim.scheduler().empty()) {
      const StepPlan plan = sim.Step();
      ASSERT_EQ(plan.unfit, nullptr);
      ASSERT_LT(sim.now() - absl::UnixEpoch(), absl::Hours(24));
    }
    EXPECT_EQ(sim.ended_.size(), 40u);
    EXPECT_EQ(sim.cache().Stats().used_bytes, 0);
  }
}

TEST(SchedulerTest, TheReserveGrowsWithPreemptionsAndShrinksBack) {
  Simulation sim({.step_tokens = 256, .decode_reserve_tokens = 4}, 4096);
  for (int i = 0; i < 4; ++i) sim.Submit("r" + std::to_string(i), 900, 400);
  int32_t highest = 0;
  while (sim.ended_.size() < 4) {
    sim.Step();
    highest = std::max(highest, sim.scheduler().decode_reserve_tokens());
  }
  EXPECT_GT(highest, 4);
  sim.Submit("later", 4, 200);
  while (sim.ended_.size() < 5) sim.Step();
  EXPECT_EQ(sim.scheduler().decode_reserve_tokens(), 4);
}

// Fills the two slabs of 2048 tokens with `num` equal sequences, and steps until the first of them
// lacks room while relief is coming.
void FillAndDefer(Simulation* sim, int num) {
  for (int i = 0; i < num; ++i) sim->Submit("r" + std::to_string(i), 4096 / num - 90, 400);
  sim->relief_coming_ = true;
  StepPlan plan = sim->Step();
  EXPECT_EQ(sim->scheduler().running(), num);
  int steps = 0;
  while (plan.deferred == 0 && ++steps < 1000) plan = sim->Step();
  EXPECT_GT(plan.deferred, 0);
}

constexpr SchedulerOptions kNoReserve = {.step_tokens = 256, .decode_reserve_tokens = 0};

TEST(SchedulerReliefTest, WhileReliefIsComingTheDeferredWaitAndTheOthersRun) {
  Simulation sim(kNoReserve, 4096);
  FillAndDefer(&sim, 3);
  // Those that have room left in their blocks go on; in the end all wait.
  StepPlan plan;
  for (int i = 0; i < 40; ++i) {
    plan = sim.Step();
    EXPECT_EQ(plan.deferred + static_cast<int32_t>(plan.items.size()), 3);
  }
  EXPECT_EQ(plan.deferred, 3);
  EXPECT_TRUE(plan.items.empty());
  EXPECT_EQ(sim.preemptions_, 0);
  EXPECT_EQ(sim.preemptions_avoided_, 0);
  EXPECT_EQ(sim.scheduler().running(), 3);
}

TEST(SchedulerReliefTest, WithoutReliefTheyPreempt) {
  Simulation sim(kNoReserve, 4096);
  FillAndDefer(&sim, 3);
  while (sim.Step().deferred < 3) {
  }
  sim.relief_coming_ = false;
  const StepPlan plan = sim.Step();
  EXPECT_EQ(plan.deferred, 0);
  EXPECT_EQ(plan.preempted, 1);
  EXPECT_EQ(sim.Find("r2")->preemptions(), 1);  // the newest
  EXPECT_EQ(plan.items.size(), 2u);
  // What the others got is the preempted one's.
  EXPECT_EQ(plan.preemptions_avoided, 0);
  while (sim.ended_.size() < 3) sim.Step();
  EXPECT_EQ(sim.preemptions_avoided_, 0);
  EXPECT_EQ(sim.cache().Stats().used_bytes, 0);
}

TEST(SchedulerReliefTest, RoomThatComesByItselfIsAPreemptionAvoided) {
  Simulation sim(kNoReserve, 4096);
  FillAndDefer(&sim, 4);
  while (sim.Step().deferred < 4) {
  }
  // One of the four leaves: the other three get room, each counted once.
  sim.End(sim.Find("r1"));
  const StepPlan plan = sim.Step();
  EXPECT_EQ(plan.deferred, 0);
  EXPECT_EQ(plan.preemptions_avoided, 3);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(sim.Step().preemptions_avoided, 0);
  EXPECT_EQ(sim.preemptions_, 0);
}

TEST(SchedulerReliefTest, NobodyIsAdmittedWhileADecodeIsDeferred) {
  Simulation sim(kNoReserve, 4096);
  sim.Submit("r0", 2000, 400);
  sim.Submit("r1", 2000, 400);
  sim.relief_coming_ = true;
  while (sim.Step().deferred == 0) {
  }
  sim.Submit("late", 1, 1, /*priority=*/100);
  for (int i = 0; i < 40; ++i) {
    EXPECT_TRUE(sim.Step().started.empty());
    EXPECT_EQ(sim.scheduler().waiting(), 1);
  }
  sim.End(sim.Find("r0"));
  EXPECT_EQ(sim.Step().preemptions_avoided, 1);
  while (!sim.ended_.contains("late")) sim.Step();
  EXPECT_EQ(sim.preemptions_, 0);
}

TEST(SchedulerReliefTest, NobodyIsAdmittedWhileAPromptIsDeferred) {
  Simulation sim({.step_tokens = 8, .decode_reserve_tokens = 0}, 4096);
  sim.Submit("decodes", 1000, 3000);
  while (sim.Find("decodes")->generated() < 10) sim.Step();
  sim.relief_coming_ = true;
  // What the other generates meanwhile takes the room that the prompt was admitted with.
  sim.Submit("prompt", 2900, 10);
  StepPlan plan = sim.Step();
  ASSERT_EQ(plan.started.size(), 1u);
  while (plan.deferred == 0 && !sim.ended_.contains("prompt")) plan = sim.Step();
  const int64_t computed = sim.Find("prompt")->computed();
  EXPECT_LT(computed, 2900);
  sim.Submit("late", 1, 1, /*priority=*/100);
  for (int i = 0; i < 40; ++i) {
    plan = sim.Step();
    EXPECT_GT(plan.deferred, 0);
    EXPECT_TRUE(plan.started.empty());
  }
  EXPECT_EQ(sim.preemptions_, 0);
  sim.relief_coming_ = false;
  while (sim.ended_.size() < 3) sim.Step();
  EXPECT_EQ(sim.cache().Stats().used_bytes, 0);
}

// Jobs may go out and come back refused for ever: the engine must not stand still with them.
TEST(SchedulerReliefTest, ReliefThatNeverComesIsWaitedForOnlySoLong) {
  SchedulerOptions options = kNoReserve;
  options.longest_idle = absl::Milliseconds(300);
  Simulation sim(options, 4096);
  FillAndDefer(&sim, 3);
  while (sim.Step().deferred < 3) {
  }
  const absl::Time idle_since = sim.now();
  StepPlan plan;
  while (plan.preempted == 0) {
    plan = sim.Step();
    ASSERT_LE(sim.now() - idle_since, absl::Milliseconds(300));
  }
  EXPECT_EQ(sim.now() - idle_since, absl::Milliseconds(300));
  EXPECT_EQ(plan.preemptions_avoided, 0);
  EXPECT_EQ(plan.items.size(), 2u);
  while (sim.ended_.size() < 3) {
    sim.Step();
    ASSERT_LT(sim.now() - idle_since, absl::Hours(1));
  }
  EXPECT_EQ(sim.preemptions_avoided_, 0);
}

// Relief comes and goes at random: all end once, and the counts agree with what the plans say.
TEST(SchedulerReliefTest, UnderPressureEveryRequestEnds) {
  Simulation sim({.step_tokens = 128, .max_sequences = 16, .decode_reserve_tokens = 0}, 6144);
  std::mt19937 random(11);
  for (int i = 0; i < 400; ++i) {
    sim.Submit(std::to_string(i), 1 + static_cast<int>(random() % 900),
               1 + static_cast<int>(random() % 300), static_cast<int>(random() % 3));
  }
  while (!sim.scheduler().empty()) {
    if (random() % 8 == 0) sim.relief_coming_ = !sim.relief_coming_;
    const StepPlan plan = sim.Step();
    if (plan.deferred > 0 || plan.preempted > 0) {
      EXPECT_LE(plan.preemptions_avoided, sim.scheduler().running());
    }
    ASSERT_LT(sim.now() - absl::UnixEpoch(), absl::Hours(2));
  }
  EXPECT_EQ(sim.ended_.size(), 400u);
  EXPECT_GT(sim.preemptions_, 0);
  EXPECT_GT(sim.preemptions_avoided_, 0);
  EXPECT_EQ(sim.cache().Stats().used_bytes, 0);
}

}  // namespace
}  // namespace condense
