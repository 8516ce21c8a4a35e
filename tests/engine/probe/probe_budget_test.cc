#include "engine/probe/probe_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>

namespace condense {
namespace {

constexpr int kDecodes = 8;

// An engine whose steps take a + c * tokens, and probes that take all they are allowed.
class Simulation {
 public:
  // Seconds. `noise`: the most by which a step is longer or shorter, a share of it.
  Simulation(double share, double per_step, double per_token, double noise = 0.0)
      : budget_(share), per_step_(per_step), per_token_(per_token), noise_(noise) {}

  // Requests run so many tokens. Returns what probes got beside them.
  int32_t Step(int32_t tokens, bool probes = true) {
    const int32_t most = std::max(1, tokens / 8);  // as the scheduler has it
    const int32_t probed = probes ? std::min(budget_.Allowed().beside, most) : 0;
    const double seconds = Take(tokens + probed, probed);
    requests_ += seconds;
    probes_ += per_token_ * probed;
    return probed;
  }
  int32_t StepAlone() {
    const int32_t probed = budget_.Allowed().alone;
    Take(probed, probed);
    return probed;
  }
  // Decodes, and a prompt of 400 tokens in every 20th step, or none.
  void Run(int steps, bool prompts, bool probes = true) {
    for (int i = 0; i < steps; ++i) {
      Step(kDecodes + (prompts && i % 20 == 0 ? 400 : 0), probes);
    }
  }

  // A step without probes, however long it seems.
  void StepTook(absl::Duration time, int32_t tokens) { budget_.Stepped(time, tokens, 0); }

  const ProbeBudget& budget() const { return budget_; }
  double requests() const { return requests_; }  // seconds of their steps
  double probes() const { return probes_; }      // seconds by which probes made those longer
  double per_token() const { return per_token_; }
  double Seconds(int32_t tokens) const { return per_step_ + per_token_ * tokens; }

 private:
  double Take(int32_t tokens, int32_t probed) {
    std::uniform_real_distribution<double> factor(1.0 - noise_, 1.0 + noise_);
    const double seconds = Seconds(tokens) * factor(random_);
    budget_.Stepped(absl::Seconds(seconds), tokens, probed);
    return seconds;
  }

  ProbeBudget budget_;
  const double per_step_, per_token_, noise_;
  std::mt19937 random_{1};
  double requests_ = 0.0, probes_ = 0.0;
};

constexpr double kBurst = 20e-3;  // seconds of credit, at most

struct Machine {
  double per_step, per_token;
};
constexpr Machine kMachines[] = {{5e-3, 1e-3}, {1e-3, 1e-3}, {20e-3, 0.5e-3}, {0.5e-3, 20e-6}};

TEST(ProbeBudgetTest, ProbesKeepToTheirShareAndUseItWhereTheCostCanBeLearned) {
  for (const Machine& machine : kMachines) {
    for (const double share : {0.01, 0.02, 0.1}) {
      SCOPED_TRACE(testing::Message()
                   << machine.per_step << " " << machine.per_token << " of " << share);
      Simulation sim(share, machine.per_step, machine.per_token);
      sim.Run(20000, /*prompts=*/true);
      EXPECT_LE(sim.probes(), share * sim.requests() + kBurst);
      // At most one beside eight decodes: a small share may be all of them. Beside so few a token
      // counts as much as each of them, which on these machines is up to six times too much.
      const double one_each = 20000 * sim.per_token();
      EXPECT_GE(sim.probes(), 0.15 * std::min(share * sim.requests(), one_each));
    }
  }
}

TEST(ProbeBudgetTest, NoiseMovesTheShareLittle) {
  for (const Machine& machine : kMachines) {
    SCOPED_TRACE(testing::Message() << machine.per_step << " " << machine.per_token);
    Simulation sim(0.02, machine.per_step, machine.per_token, /*noise=*/0.2);
    sim.Run(20000, /*prompts=*/true);
    EXPECT_LE(sim.probes(), 1.2 * 0.02 * sim.requests() + kBurst);
    EXPECT_GE(sim.probes(), 0.15 * 0.02 * sim.requests());
  }
}

// Equal steps do not tell what a token more costs: it counts as much as the others.
TEST(ProbeBudgetTest, AUnknownCostIsOverestimated) {
  for (const Machine& machine : kMachines) {
    Simulation sim(0.02, machine.per_step, machine.per_token);
    sim.Run(20000, /*prompts=*/false);
    EXPECT_GT(sim.probes(), 0.0);
    EXPECT_LE(sim.probes(), 0.02 * sim.requests() + kBurst);
  }
}

TEST(ProbeBudgetTest, NothingIsAllowedBesideBeforeAnythingIsKnown) {
  ProbeBudget budget(0.5);
  EXPECT_EQ(budget.Allowed().beside, 0);
  EXPECT_EQ(budget.Allowed().alone, 1);
  budget.Stepped(absl::Seconds(1), 0, 0);  // a step without tokens says nothing
  EXPECT_EQ(budget.Allowed().beside, 0);
  EXPECT_EQ(budget.Allowed().alone, 1);
}

TEST(ProbeBudgetTest, StepsWithoutRequestsGiveNothingToSpendBesideThem) {
  Simulation sim(0.5, 1e-3, 1e-3);
  for (int i = 0; i < 1000; ++i) sim.StepAlone();
  EXPECT_EQ(sim.budget().Allowed().beside, 0);
}

TEST(ProbeBudgetTest, AfterAQuietTimeABurstIsSmall) {
  for (const Machine& machine : kMachines) {
    Simulation sim(0.1, machine.per_step, machine.per_token);
    sim.Run(20000, /*prompts=*/true, /*probes=*/false);
    const int32_t allowed = sim.budget().Allowed().beside;
    EXPECT_GT(allowed, 0);
    // The cost is known but for rounding.
    EXPECT_LE(allowed * sim.per_token(), kBurst * 1.001);
    const double before = sim.probes();
    sim.Run(100, /*prompts=*/true);
    EXPECT_LE(sim.probes() - before, kBurst + 0.1 * 100 * sim.Seconds(kDecodes + 400));
  }
}

TEST(ProbeBudgetTest, AloneAStepTakesFifteenMilliseconds) {
  const auto longest = absl::ToDoubleSeconds(ProbeBudget::kLongestAlone);
  for (const Machine& machine : {Machine{2e-3, 1e-3}, Machine{0.1e-3, 2e-3}}) {
    Simulation sim(0.02, machine.per_step, machine.per_token);
    sim.Run(200, /*prompts=*/true);
    for (int i = 0; i < 200; ++i) sim.StepAlone();
    const int32_t alone = sim.StepAlone();
    EXPECT_LE(sim.Seconds(alone), longest + machine.per_step + machine.per_token);
    EXPECT_GE(sim.Seconds(alone), 0.6 * longest);
  }
}

TEST(ProbeBudgetTest, AloneIsAtLeastOneTokenAndAtMostSixtyFour) {
  Simulation slow(0.02, 10e-3, 100e-3);
  Simulation quick(0.02, 10e-6, 10e-6);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(slow.StepAlone(), 1);
    quick.StepAlone();
  }
  EXPECT_EQ(quick.budget().Allowed().alone, ProbeBudget::kMostAlone);
}

TEST(ProbeBudgetTest, AShareOfNothingAllowsNoneBeside) {
  Simulation sim(0.0, 1e-3, 1e-3);
  sim.Run(1000, /*prompts=*/true);
  EXPECT_EQ(sim.probes(), 0.0);
  EXPECT_EQ(sim.budget().Allowed().beside, 0);
  EXPECT_GT(sim.budget().Allowed().alone, 1);
}

TEST(ProbeBudgetTest, WhatWasSpentIsAtLeastWhatProbesTook) {
  Simulation sim(0.05, 5e-3, 1e-3);
  sim.Run(5000, /*prompts=*/true);
  const double beside = absl::ToDoubleSeconds(sim.budget().spent());
  EXPECT_GT(beside, 0.9 * sim.probes());
  EXPECT_LT(beside, 2.0 * sim.probes());
  // A step that is all theirs counts as a whole.
  const int32_t alone = sim.StepAlone();
  EXPECT_NEAR(absl::ToDoubleSeconds(sim.budget().spent()) - beside, sim.Seconds(alone), 1e-6);
}

TEST(ProbeBudgetTest, AClockThatIsSetBackChangesNothing) {
  Simulation set_back(0.02, 5e-3, 1e-4), steady(0.02, 5e-3, 1e-4);
  set_back.Run(400, /*prompts=*/true);
  steady.Run(400, /*prompts=*/true);
  set_back.StepTook(absl::Hours(-1), kDecodes);
  EXPECT_GE(set_back.budget().spent(), absl::ZeroDuration());
  for (int i = 0; i < 400; ++i) EXPECT_EQ(set_back.Step(kDecodes), steady.Step(kDecodes));
  EXPECT_GT(set_back.probes(), 0.0);
}

// What requests cost changes: a context has grown.
TEST(ProbeBudgetTest, ItFollowsACostThatChanges) {
  ProbeBudget budget(0.1);
  const auto run = [&](double per_token) {
    for (int i = 0; i < 500; ++i) {
      const int32_t tokens = 64 + (i % 10 == 0 ? 200 : 0);
      budget.Stepped(absl::Seconds(1e-3 + per_token * tokens), tokens, 0);
    }
  };
  run(0.1e-3);
  const int32_t cheap = budget.Allowed().beside;
  run(1e-3);
  EXPECT_NEAR(cheap, 200, 2);
  EXPECT_NEAR(budget.Allowed().beside, 20, 1);
}

}  // namespace
}  // namespace condense
