#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace condense::cpu {
namespace {

class ThreadPoolTest : public ::testing::TestWithParam<int> {};

double ProcessCpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TEST_P(ThreadPoolTest, EveryTaskRunsOnceAndItsWritesAreVisible) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.num_threads(), GetParam());
  for (int num_tasks : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<int> runs(num_tasks, 0);  // not atomic: the pool must order the writes
    pool.Run(num_tasks, [&](int task, int) { ++runs[task]; });
    EXPECT_EQ(runs, std::vector<int>(num_tasks, 1));
  }
}

TEST_P(ThreadPoolTest, ManyShortRunsFollowEachOther) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> slots(16, 0);
  int64_t total = 0;
  for (int run = 0; run < 20000; ++run) {
    const int num_tasks = 1 + run % 16;
    pool.Run(num_tasks, [&](int task, int) { slots[task] = run + task; });
    for (int task = 0; task < num_tasks; ++task) ASSERT_EQ(slots[task], run + task);
    total += num_tasks;
  }
  EXPECT_GT(total, 0);
}

TEST_P(ThreadPoolTest, RunningTasksNeverShareAWorkerNumber) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> busy(pool.num_threads());
  std::atomic<int> clashes{0};
  for (int run = 0; run < 200; ++run) {
    pool.Run(32, [&](int, int worker) {
      if (worker < 0 || worker >= pool.num_threads() || busy[worker].fetch_add(1) != 0) ++clashes;
      busy[worker].fetch_sub(1);
    });
  }
  EXPECT_EQ(clashes, 0);
}

TEST_P(ThreadPoolTest, RunsAfterAPauseWakeParkedWorkers) {
  ThreadPool pool(GetParam());
  for (int run = 0; run < 20; ++run) {
    std::this_thread::sleep_for(std::chrono::milliseconds(run % 3));
    std::atomic<int> arrived{0};
    // Every thread must come, because none leaves its task before all have begun one.
    pool.Run(pool.num_threads(), [&](int, int) {
      ++arrived;
      while (arrived < pool.num_threads()) std::this_thread::yield();
    });
    EXPECT_EQ(arrived, pool.num_threads());
  }
}

TEST_P(ThreadPoolTest, OwnerParksWhileATaskTakesLong) {
  ThreadPool pool(GetParam());
  std::atomic<int> done{0};
  pool.Run(pool.num_threads() * 2, [&](int, int worker) {
    if (worker != 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ++done;
  });
  EXPECT_EQ(done, pool.num_threads() * 2);
}

TEST_P(ThreadPoolTest, IdlePoolBurnsNoCpu) {
  ThreadPool pool(GetParam());
  pool.Run(8, [](int, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = ProcessCpuSeconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(ProcessCpuSeconds() - before, 0.02);
}

TEST_P(ThreadPoolTest, OneThreadRunsInlineAndInOrder) {
  ThreadPool pool(1);
  std::vector<int> order;
  const std::thread::id caller = std::this_thread::get_id();
  pool.Run(5, [&](int task, int worker) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(worker, 0);
    order.push_back(task);
  });
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(ThreadPoolLifetimeTest, PoolsStartAndEndAtAnyMoment) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(3);
    if (i % 2 == 0) pool.Run(4, [](int, int) {});
  }
}

}  // namespace
}  // namespace condense::cpu
