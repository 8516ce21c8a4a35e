#include "tools/eval/eval_cells.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace condense {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> Names(const EvalCellChoice& choice) {
  const auto cells = MakeEvalCells(choice);
  EXPECT_TRUE(cells.ok()) << cells.status();
  std::vector<std::string> names;
  if (!cells.ok()) return names;
  for (const EvalCell& cell : *cells) names.push_back(cell.name + (cell.floor ? "*" : ""));
  return names;
}

TEST(EvalCellsTest, EveryPolicyComesAtEveryRatioWithItsFloors) {
  EXPECT_THAT(Names({.policies = {"similarity", "none"}, .ratios = {2, 4.5}}),
              ElementsAre("similarity@2", "similarity@4.5", "none@2", "none@4.5", "random@2*",
                          "window@2*", "random@4.5*", "window@4.5*"));
}

TEST(EvalCellsTest, WhatWasAskedForIsNoFloor) {
  EXPECT_THAT(Names({.policies = {"window"}, .ratios = {2}}), ElementsAre("window@2", "random@2*"));
}

TEST(EvalCellsTest, NothingComesTwice) {
  EXPECT_THAT(Names({.policies = {"random", "random"}, .ratios = {2, 2}}),
              ElementsAre("random@2", "window@2*"));
}

TEST(EvalCellsTest, FloorsHaveTheRatiosOfPresets) {
  const auto cells = MakeEvalCells({.presets = {"aggressive"}});
  ASSERT_TRUE(cells.ok());
  ASSERT_EQ(cells->size(), 3u);
  for (const EvalCell& cell : *cells) {
    EXPECT_EQ(cell.compression.ratio, cells->front().compression.ratio) << cell.name;
    EXPECT_TRUE(cell.compression.active());
  }
  EXPECT_EQ((*cells)[1].compression.policy, "random");
}

TEST(EvalCellsTest, FloorsCanBeLeftOut) {
  EXPECT_THAT(Names({.policies = {"window"}, .ratios = {2, 3}, .floors = false}),
              ElementsAre("window@2", "window@3"));
}

TEST(EvalCellsTest, OffHasNoFloor) { EXPECT_THAT(Names({.presets = {"off"}}), ElementsAre("off")); }

TEST(EvalCellsTest, HasDefaultsForWhatIsLeftOut) {
  EXPECT_THAT(Names({.policies = {"similarity"}}),
              ElementsAre("similarity@4", "random@4*", "window@4*"));
  EXPECT_THAT(Names({.ratios = {3}}), ElementsAre("balanced@3", "random@3*", "window@3*"));
  const std::vector<std::string> all = Names({});
  for (const std::string& preset : PresetNames()) {
    if (preset == "off") continue;
    EXPECT_THAT(all, Contains(preset));
  }
  EXPECT_THAT(all, Not(Contains("off")));
}

TEST(EvalCellsTest, ErrorsNameTheCellAndTheValue) {
  const auto policy = MakeEvalCells({.policies = {"magic"}, .ratios = {4}}).status();
  EXPECT_EQ(policy.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(policy.message()), HasSubstr("magic@4"));
  const auto ratio = MakeEvalCells({.policies = {"none"}, .ratios = {99}}).status();
  EXPECT_EQ(ratio.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ratio.message()), HasSubstr("99"));
  EXPECT_EQ(MakeEvalCells({.presets = {"tiny"}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace condense
