#include "server/lifecycle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <vector>

#include "absl/time/clock.h"

namespace condense {
namespace {

using ::testing::ElementsAre;

bool Eventually(const std::function<bool()>& condition) {
  const absl::Time until = absl::Now() + absl::Seconds(10);
  while (absl::Now() < until) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return condition();
}

class LifecycleTest : public ::testing::Test {
 protected:
  void Start(absl::Duration stall_timeout) {
    lifecycle_ = std::make_unique<Lifecycle>(
        [this] {
          MutexLock lock(&mutex_);
          return progress_;
        },
        stall_timeout,
        [this](ServingState state) {
          MutexLock lock(&mutex_);
          changes_.push_back(state);
        });
    lifecycle_->Start();
  }
  void Set(Progress progress) {
    MutexLock lock(&mutex_);
    progress_ = progress;
  }
  std::vector<ServingState> changes() {
    MutexLock lock(&mutex_);
    return changes_;
  }
  std::future<int32_t> Drain(absl::Duration timeout) {
    auto promise = std::make_shared<std::promise<int32_t>>();
    lifecycle_->Drain(timeout, [promise](int32_t remaining) { promise->set_value(remaining); });
    return promise->get_future();
  }

  Mutex mutex_;
  Progress progress_ ABSL_GUARDED_BY(mutex_);
  std::vector<ServingState> changes_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Lifecycle> lifecycle_;
};

TEST_F(LifecycleTest, IdleIsHealthyForEver) {
  Start(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(500));
  EXPECT_EQ(lifecycle_->state(), ServingState::kServing);
  EXPECT_THAT(changes(), ElementsAre(ServingState::kServing));
}

TEST_F(LifecycleTest, WorkWithoutStepsIsAStallAndAStepEndsIt) {
  Start(absl::Milliseconds(100));
  Set({.steps = 5, .has_work = true, .calls = 1});
  EXPECT_TRUE(Eventually([&] { return lifecycle_->state() == ServingState::kStalled; }));
  Set({.steps = 6, .has_work = true, .calls = 1});
  EXPECT_TRUE(Eventually([&] { return changes().size() >= 3; }));
  EXPECT_THAT(changes(), ::testing::Contains(ServingState::kStalled));
  EXPECT_EQ(changes()[2], ServingState::kServing);
}

TEST_F(LifecycleTest, DrainWaitsForTheLastCall) {
  Set({.has_work = true, .calls = 2});
  Start(absl::Seconds(60));
  std::future<int32_t> drained = Drain(absl::Seconds(60));
  EXPECT_TRUE(Eventually([&] { return lifecycle_->state() == ServingState::kDraining; }));
  EXPECT_EQ(drained.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  Set({});
  EXPECT_EQ(drained.get(), 0);
  EXPECT_EQ(lifecycle_->state(), ServingState::kDraining);
}

TEST_F(LifecycleTest, DrainEndsWithItsTimeAndTellsWhatRemains) {
  Set({.has_work = true, .calls = 2});
  Start(absl::Seconds(60));
  EXPECT_EQ(Drain(absl::Milliseconds(50)).get(), 2);
}

TEST_F(LifecycleTest, DestructionAnswersPendingDrains) {
  Set({.has_work = true, .calls = 3});
  Start(absl::Seconds(60));
  std::future<int32_t> drained = Drain(absl::InfiniteDuration());
  lifecycle_.reset();
  EXPECT_EQ(drained.get(), 3);
}

}  // namespace
}  // namespace condense
