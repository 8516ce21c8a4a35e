#include "cache/candidate_heap.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace condense {
namespace {

std::vector<int32_t> PopAll(CandidateHeap* heap) {
  std::vector<int32_t> ids;
  while (!heap->empty()) ids.push_back(heap->Pop().id);
  return ids;
}

using Ids = std::vector<int32_t>;

TEST(CandidateHeapTest, PopsByAscendingScore) {
  CandidateHeap heap;
  const double scores[] = {5, 1, 4, 2, 3, 0};
  for (int32_t id = 0; id < 6; ++id) heap.Insert({scores[id], id});
  EXPECT_EQ(heap.Top().id, 5);
  EXPECT_EQ(PopAll(&heap), (Ids{5, 1, 3, 4, 2, 0}));
}

TEST(CandidateHeapTest, EqualScoresPopById) {
  CandidateHeap heap;
  for (const int32_t id : {7, 3, 9, 1, 5}) heap.Insert({1.0, id});
  EXPECT_EQ(PopAll(&heap), (Ids{1, 3, 5, 7, 9}));
}

TEST(CandidateHeapTest, FindsTheScoreOfAnyCandidate) {
  CandidateHeap heap;
  heap.Insert({2.0, 4});
  heap.Insert({1.0, 8});
  EXPECT_EQ(heap.Find(4), 2.0);
  EXPECT_EQ(heap.Find(8), 1.0);
  EXPECT_EQ(heap.Find(5), std::nullopt);
  heap.Pop();
  EXPECT_EQ(heap.Find(8), std::nullopt);
}

TEST(CandidateHeapTest, UpdateMovesBothWays) {
  CandidateHeap heap;
  for (int32_t id = 0; id < 10; ++id) heap.Insert({static_cast<double>(id), id});
  heap.Update({-1.0, 9});
  EXPECT_EQ(heap.Top().id, 9);
  heap.Update({100.0, 9});
  EXPECT_EQ(heap.Top().id, 0);
  EXPECT_EQ(heap.size(), 10);
  EXPECT_EQ(PopAll(&heap).back(), 9);
}

TEST(CandidateHeapTest, RemoveTakesOutOneAndSaysWhetherItWasThere) {
  CandidateHeap heap;
  for (int32_t id = 0; id < 8; ++id) heap.Insert({static_cast<double>(id % 3), id});
  EXPECT_TRUE(heap.Remove(3));
  EXPECT_FALSE(heap.Remove(3));
  EXPECT_FALSE(heap.Remove(99));
  EXPECT_EQ(PopAll(&heap), (Ids{0, 6, 1, 4, 7, 2, 5}));
}

TEST(CandidateHeapTest, InfiniteScoresAreOrdered) {
  CandidateHeap heap;
  const double infinity = std::numeric_limits<double>::infinity();
  heap.Insert({infinity, 0});
  heap.Insert({-infinity, 1});
  heap.Insert({0.0, 2});
  EXPECT_EQ(PopAll(&heap), (Ids{1, 2, 0}));
}

// Random operations beside an ordered set.
TEST(CandidateHeapTest, AgreesWithAnOrderedSet) {
  std::mt19937 random(20240611);
  CandidateHeap heap;
  std::set<std::pair<double, int32_t>> ordered;
  std::map<int32_t, double> scores;
  for (int step = 0; step < 200000; ++step) {
    const auto id = static_cast<int32_t>(random() % 300);
    const auto score = static_cast<double>(random() % 50);
    const auto known = scores.find(id);
    if (random() % 8 == 0 && !ordered.empty()) {
      const Candidate top = heap.Pop();
      ASSERT_EQ(std::pair(top.score, top.id), *ordered.begin()) << step;
      ordered.erase(ordered.begin());
      scores.erase(top.id);
    } else if (known == scores.end()) {
      heap.Insert({score, id});
      scores[id] = score;
      ordered.insert({score, id});
    } else if (random() % 3 == 0) {
      ASSERT_TRUE(heap.Remove(id));
      ordered.erase({known->second, id});
      scores.erase(known);
    } else {
      heap.Update({score, id});
      ordered.erase({known->second, id});
      ordered.insert({score, id});
      known->second = score;
    }
    ASSERT_EQ(heap.size(), static_cast<int32_t>(ordered.size()));
    if (!ordered.empty()) {
      ASSERT_EQ(heap.Top().id, ordered.begin()->second) << step;
    }
    const auto found = scores.find(id);
    ASSERT_EQ(heap.Find(id), found == scores.end() ? std::nullopt : std::optional(found->second));
  }
}

TEST(CandidateHeapDeathTest, BrokenPromisesStopTheProcess) {
  CandidateHeap heap;
  EXPECT_DEATH(heap.Top(), "empty");
  EXPECT_DEATH(heap.Update({1.0, 1}), "found");
  EXPECT_DEATH(heap.Insert({std::numeric_limits<double>::quiet_NaN(), 1}), "score");
  heap.Insert({1.0, 1});
  EXPECT_DEATH(heap.Insert({2.0, 1}), "contains");
}

}  // namespace
}  // namespace condense
