// What every registered policy must keep, whatever the evidence: a new one is tested before its
// author writes a test.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cache/policies/registry.h"
#include "tests/support/unit_fixture.h"

namespace condense {
namespace {

constexpr int32_t kHeadDim = 64;
constexpr int32_t kHugeEntries = 8192;
constexpr double kMostMilliseconds = 20.0;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
constexpr bool kIsFast = false;
#elif defined(__has_feature)
constexpr bool kIsFast = !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer);
#else
constexpr bool kIsFast = true;
#endif

struct Adversary {
  std::string name;
  UnitFixture unit;
};

using Change = std::function<void(UnitFixture*)>;

void SetAll(std::vector<float>* values, float value) {
  std::fill(values->begin(), values->end(), value);
}

std::vector<Adversary> Adversaries() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<Adversary> all;
  const auto add = [&all](const std::string& name, int32_t n, const Change& change) {
    all.push_back({name, MakeUnit(n, kHeadDim, all.size())});
    change(&all.back().unit);
  };
  add("empty", 0, [](UnitFixture* unit) { unit->protection.end_position = 1000; });
  add("one entry", 1, [](UnitFixture* unit) { unit->protection.end_position = 1000; });
  add("one free entry", 1,
      [](UnitFixture* unit) { unit->protection = {.num_sinks = 0, .end_position = 1000}; });
  add("all protected", 600, [](UnitFixture* unit) { unit->protection.window_tokens = 1000; });
  add("plain", 2000, [](UnitFixture*) {});
  add("short", 300, [](UnitFixture*) {});
  add("no protection", 700, [](UnitFixture* unit) {
    unit->protection = {.num_sinks = 0, .window_tokens = 0, .grace_tokens = 0, .end_position = 700};
  });
  add("equal scores", 700, [](UnitFixture* unit) { SetAll(&unit->evidence.mean, 0.001f); });
  add("equal keys", 700, [](UnitFixture* unit) { SetAll(&unit->keys, 1.0f); });
  add("zero keys", 700, [](UnitFixture* unit) { SetAll(&unit->keys, 0.0f); });
  add("NaN keys", 700, [nan](UnitFixture* unit) { SetAll(&unit->keys, nan); });
  add("infinite keys", 700, [infinity](UnitFixture* unit) { SetAll(&unit->keys, infinity); });
  add("huge keys", 700, [](UnitFixture* unit) { SetAll(&unit->keys, 3e38f); });
  add("no attention", 700, [](UnitFixture* unit) { SetAll(&unit->evidence.mean, 0.0f); });
  add("NaN attention", 700, [nan](UnitFixture* unit) {
    for (size_t i = 0; i < 700; i += 3) unit->evidence.mean[i] = nan;
  });
  add("never seen", 700, [](UnitFixture* unit) {
    std::fill(unit->evidence.steps.begin(), unit->evidence.steps.end(), 0);
  });
  add("one draws all", 700, [](UnitFixture* unit) {
    SetAll(&unit->evidence.mean, 0.0f);
    unit->evidence.mean[300] = 1.0f;
  });
  add("all marked", 700, [](UnitFixture* unit) {
    std::fill(unit->evidence.marked.begin(), unit->evidence.marked.end(), 1);
  });
  add("one position", 700,
      [](UnitFixture* unit) { std::fill(unit->positions.begin(), unit->positions.end(), 100); });
  add("far positions", 700, [](UnitFixture* unit) {
    for (int32_t& position : unit->positions) position = 2000000000 + position * 1000;
    unit->protection.end_position = 2100000000;
  });
  add("merged before", 700, [](UnitFixture* unit) {
    for (int32_t i = 0; i < 700; ++i) {
      unit->counts.push_back(1 + i % 255);
      unit->biases.push_back(i % 255 == 0 ? 0.0f : kMaxBias * static_cast<float>(i % 7) / 6.0f);
    }
  });
  return all;
}

class PolicyConformanceTest : public testing::TestWithParam<PolicyInfo> {
 protected:
  PolicyConformanceTest() : policy_(GetParam().make()) {}

  static PolicyParams Params(const UnitFixture& unit, double ratio) {
    PolicyParams params{.formats = UsualFormats(kHeadDim), .seed = 7};
    const double bytes = static_cast<double>(unit.positions.size()) * 4 * kHeadDim;
    params.target_bytes = ratio > 0 ? bytes / ratio : 0;
    return params;
  }

  // Everything that a plan must keep.
  static void ExpectSound(const MergePlan& plan, const UnitFixture& unit,
                          const PolicyParams& params) {
    const UnitView view = unit.View();
    const absl::Status status = ValidatePlan(plan, view.entries, view.entries.size());
    ASSERT_TRUE(status.ok()) << status;
    for (const MergeGroup& group : plan.groups) ASSERT_TRUE(std::isfinite(group.bias));
    EXPECT_TRUE(std::isfinite(plan.cosine));
    const auto is_format = [&plan](const FormatCost& cost) { return cost.format == plan.format; };
    const auto cost = std::find_if(params.formats.begin(), params.formats.end(), is_format);
    ASSERT_NE(cost, params.formats.end());
    const auto num_left = static_cast<int32_t>(plan.groups.size());
    const bool reached = num_left <= plan.target_entries;
    EXPECT_EQ(reached, plan.shortfall == Shortfall::kNone)
        << num_left << " of " << plan.target_entries << ", " << ShortfallName(plan.shortfall);
    if (reached && params.target_bytes > 0) {
      EXPECT_LE(PlanBytes(plan, view, *cost), params.target_bytes * 1.0000001);
    }
  }

  const std::unique_ptr<const Policy> policy_;
};

bool SamePlan(const MergePlan& a, const MergePlan& b) {
  const auto same_group = [](const MergeGroup& x, const MergeGroup& y) {
    return x.kind == y.kind && x.first_member == y.first_member && x.num_members == y.num_members &&
           x.position == y.position && x.bias == y.bias && x.count == y.count;
  };
  const auto same_member = [](const MergeMember& x, const MergeMember& y) {
    return x.entry == y.entry && x.key_weight == y.key_weight && x.value_weight == y.value_weight;
  };
  return a.format == b.format && a.drops == b.drops && a.marks == b.marks && a.cosine == b.cosine &&
         a.shortfall == b.shortfall && a.target_entries == b.target_entries &&
         std::equal(a.groups.begin(), a.groups.end(), b.groups.begin(), b.groups.end(),
                    same_group) &&
         std::equal(a.members.begin(), a.members.end(), b.members.begin(), b.members.end(),
                    same_member);
}

TEST_P(PolicyConformanceTest, KnowsItsName) { EXPECT_EQ(policy_->name(), GetParam().name); }

TEST_P(PolicyConformanceTest, PlansAreSoundWhateverTheEvidence) {
  for (const Adversary& adversary : Adversaries()) {
    for (const double ratio : {0.0, 0.5, 1.0, 3.0, 5.0, 8.0, 1000.0}) {
      for (const double fill : {0.0, 0.5, 0.8, 1.0}) {
        SCOPED_TRACE(adversary.name + ", ratio " + std::to_string(ratio) + ", fill " +
                     std::to_string(fill));
        PolicyParams params = Params(adversary.unit, ratio);
        params.fill = fill;
        params.allow_importance = fill == 1.0;
        const MergePlan plan = policy_->Plan(adversary.unit.View(), params);
        ASSERT_NO_FATAL_FAILURE(ExpectSound(plan, adversary.unit, params));
      }
    }
  }
}

TEST_P(PolicyConformanceTest, PlansAreSoundForStrangeParameters) {
  const UnitFixture unit = MakeUnit(900, kHeadDim, 11);
  const std::function<void(PolicyParams*)> changes[] = {
      [](PolicyParams* p) { p->cluster_window = 1; },
      [](PolicyParams* p) { p->cluster_window = 1 << 30; },
      [](PolicyParams* p) { p->max_members = 1; },
      [](PolicyParams* p) { p->cosine = p->balanced_cosine = -1.0f; },
      [](PolicyParams* p) { p->cosine = p->balanced_cosine = 1.0f; },
      [](PolicyParams* p) { p->shared_cosine = 0.9f; },
      [](PolicyParams* p) { p->shared_cosine = 5.0f; },
      [](PolicyParams* p) { p->fold_window = 0; },
      [](PolicyParams* p) { p->drop_share = 0.0; },
      [](PolicyParams* p) { p->drop_share = 5.0; },
      [](PolicyParams* p) { p->max_entries = 100; },
      [](PolicyParams* p) { p->max_entries = 0; },
      [](PolicyParams* p) { p->min_tokens = 0; },
      [](PolicyParams* p) { p->seed = ~uint64_t{0}; },
      [](PolicyParams* p) { p->target_bytes = 1e-300; },
      [](PolicyParams* p) { p->target_bytes = 1e300; },
  };
  for (const auto& change : changes) {
    for (const double fill : {0.8, 1.0}) {
      SCOPED_TRACE(&change - changes);
      PolicyParams params = Params(unit, 6.0);
      params.fill = fill;
      params.allow_importance = true;
      change(&params);
      ASSERT_NO_FATAL_FAILURE(ExpectSound(policy_->Plan(unit.View(), params), unit, params));
    }
  }
}

TEST_P(PolicyConformanceTest, EqualInputsGiveEqualPlans) {
  const UnitFixture unit = MakeUnit(1500, kHeadDim, 12);
  const UnitFixture copy = unit;
  const PolicyParams params = Params(unit, 6.0);
  const MergePlan plan = policy_->Plan(unit.View(), params);
  EXPECT_TRUE(SamePlan(plan, GetParam().make()->Plan(copy.View(), params)));
  EXPECT_TRUE(SamePlan(plan, policy_->Plan(unit.View(), params)));
}

TEST_P(PolicyConformanceTest, ShortSequencesOnlyChangeTheirFormat) {
  const UnitFixture unit = MakeUnit(511, kHeadDim, 13);
  const MergePlan plan = policy_->Plan(unit.View(), Params(unit, 8.0));
  EXPECT_EQ(plan.groups.size(), 511u);
  EXPECT_EQ(plan.shortfall, Shortfall::kTooShort);
  EXPECT_EQ(plan.format, (StorageFormat{4, 4}));
}

TEST_P(PolicyConformanceTest, KeepsWhatHasRoom) {
  const UnitFixture unit = MakeUnit(1000, kHeadDim, 14);
  const MergePlan plan = policy_->Plan(unit.View(), Params(unit, 1.0));
  EXPECT_EQ(plan.groups.size(), 1000u);
  EXPECT_EQ(plan.shortfall, Shortfall::kNone);
}

// Repeated cycles over what earlier ones left: entries stay sound and tokens are accounted for.
TEST_P(PolicyConformanceTest, CyclesCompose) {
  UnitFixture unit = MakeUnit(1500, kHeadDim, 15);
  EntryStats stats;
  stats.AppendMany(1500);
  stats.Observe(unit.evidence.mean);
  int64_t tokens = 1500;
  for (int cycle = 0; cycle < 6; ++cycle) {
    unit.evidence = stats.Freeze(0, stats.size());
    PolicyParams params = Params(unit, 0);
    params.target_bytes = 1500.0 * 4 * kHeadDim / (3 + cycle);
    const UnitView view = unit.View();
    const MergePlan plan = policy_->Plan(view, params);
    ASSERT_NO_FATAL_FAILURE(ExpectSound(plan, unit, params));
    for (const int32_t entry : plan.drops) tokens -= view.entries.count(entry);
    stats.CarryOver(plan, 0);
    UnitFixture next = unit;
    next.positions.clear(), next.biases.clear(), next.counts.clear(), next.keys.clear();
    for (const MergeGroup& group : plan.groups) {
      next.positions.push_back(group.position);
      next.biases.push_back(group.bias);
      next.counts.push_back(group.count);
      const int32_t pivot = plan.members[group.first_member].entry;
      next.keys.insert(next.keys.end(), unit.keys.begin() + pivot * kHeadDim,
                       unit.keys.begin() + (pivot + 1) * kHeadDim);
    }
    unit = next;
    ASSERT_EQ(stats.size(), static_cast<int32_t>(unit.positions.size()));
    ASSERT_EQ(std::accumulate(unit.counts.begin(), unit.counts.end(), int64_t{0}), tokens);
  }
}

TEST_P(PolicyConformanceTest, HugeUnitsTakeLittleTime) {
  if (!kIsFast) GTEST_SKIP() << "this build is not optimized or is instrumented";
  const std::pair<std::string, Change> units[] = {
      {"plain", [](UnitFixture*) {}},
      {"equal keys", [](UnitFixture* unit) { SetAll(&unit->keys, 1.0f); }},
      {"one position",
       [](UnitFixture* unit) { std::fill(unit->positions.begin(), unit->positions.end(), 100); }},
  };
  for (const auto& [name, change] : units) {
    UnitFixture unit = MakeUnit(kHugeEntries, kHeadDim, 16);
    change(&unit);
    for (const double ratio : {4.0, 6.0, 8.0}) {
      double best = 1e9;
      for (int attempt = 0; attempt < 5 && best > kMostMilliseconds; ++attempt) {
        const std::clock_t start = std::clock();
        const MergePlan plan = policy_->Plan(unit.View(), Params(unit, ratio));
        best = std::min(best, 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
        EXPECT_EQ(plan.num_entries, kHugeEntries);
      }
      EXPECT_LE(best, kMostMilliseconds) << name << ", ratio " << ratio;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, PolicyConformanceTest,
                         testing::ValuesIn(RegisteredPolicies().begin(),
                                           RegisteredPolicies().end()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace condense
