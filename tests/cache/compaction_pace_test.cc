#include "cache/compaction_pace.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

namespace condense {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// Only steps bring more time: nothing here depends on the clock but what must not happen too early.
constexpr PaceLimits kPerStepOnly{.per_step = milliseconds(1), .share = 0.0};

void SpendCpuTime(milliseconds time) {
  timespec now{};
  const auto used = [&now] {
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::seconds(now.tv_sec) + nanoseconds(now.tv_nsec);
  };
  const nanoseconds until = used() + time;
  while (used() < until) continue;
}

// A worker that spends `piece` of CPU time between two calls.
class Worker {
 public:
  Worker(CompactionPace* pace, milliseconds piece)
      : thread_([this, pace, piece] {
          while (!end_) {
            pace->Await();
            ++pieces_;
            SpendCpuTime(piece);
          }
        }),
        pace_(pace) {}
  ~Worker() {
    end_ = true;
    pace_->Lift();
    thread_.join();
  }
  int pieces() const { return pieces_; }
  bool ReachesWithin10s(int pieces) const {
    for (int i = 0; i < 10000 && pieces_ < pieces; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    return pieces_ >= pieces;
  }

 private:
  std::atomic<bool> end_{false};
  std::atomic<int> pieces_{0};
  std::thread thread_;
  CompactionPace* const pace_;
};

TEST(CompactionPaceTest, RunsFreelyWhileNoStepDoes) {
  CompactionPace pace(kPerStepOnly);
  const Worker worker(&pace, milliseconds(2));
  EXPECT_TRUE(worker.ReachesWithin10s(10));
}

TEST(CompactionPaceTest, AStepLetsThroughWhatItAllowsAndTheNextOneMore) {
  CompactionPace pace(kPerStepOnly);
  pace.BeginStep(milliseconds(0));
  const Worker worker(&pace, milliseconds(2));
  // The first piece begins within the allowance, and is twice what a step allows.
  ASSERT_TRUE(worker.ReachesWithin10s(1));
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_EQ(worker.pieces(), 1);
  pace.BeginStep(milliseconds(0));  // pays
  std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(worker.pieces(), 1);
  pace.BeginStep(milliseconds(0));
  pace.BeginStep(milliseconds(0));
  EXPECT_TRUE(worker.ReachesWithin10s(2));
}

TEST(CompactionPaceTest, SavedTimeGoesToTheWorker) {
  CompactionPace pace(kPerStepOnly);
  pace.BeginStep(milliseconds(9));
  const Worker worker(&pace, milliseconds(2));
  ASSERT_TRUE(worker.ReachesWithin10s(5));
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_LE(worker.pieces(), 6);
}

TEST(CompactionPaceTest, AShareComesByWaiting) {
  CompactionPace pace({.per_step = milliseconds(1), .share = 0.5});
  pace.BeginStep(milliseconds(0));
  const Worker worker(&pace, milliseconds(2));
  EXPECT_TRUE(worker.ReachesWithin10s(5));
}

TEST(CompactionPaceTest, LiftingWakesTheWorker) {
  CompactionPace pace(kPerStepOnly);
  pace.BeginStep(milliseconds(0));
  const Worker worker(&pace, milliseconds(2));
  ASSERT_TRUE(worker.ReachesWithin10s(1));
  pace.Lift();
  EXPECT_TRUE(worker.ReachesWithin10s(10));
}

TEST(CompactionPaceTest, TellsWhatTheWorkerOwesUntilItIsPaid) {
  CompactionPace pace(kPerStepOnly);
  EXPECT_EQ(pace.BeginStep(milliseconds(0)), nanoseconds(0));
  EXPECT_EQ(pace.BeginStep(milliseconds(0)), nanoseconds(0));
  // Counted when it asks for more, which is its second call.
  std::thread worker([&pace] {
    pace.Await();
    SpendCpuTime(milliseconds(4));
    pace.Await();
  });
  nanoseconds owed{0};
  for (int i = 0; i < 10000 && owed == nanoseconds(0); ++i) {
    std::this_thread::sleep_for(milliseconds(1));
    owed = pace.BeginStep(milliseconds(0));
  }
  EXPECT_GE(owed, milliseconds(3));  // of 4, less one step's
  EXPECT_EQ(pace.BeginStep(milliseconds(0)), owed - milliseconds(1));
  pace.Lift();
  worker.join();
  EXPECT_EQ(pace.BeginStep(milliseconds(0)), nanoseconds(0));
}

}  // namespace
}  // namespace condense
