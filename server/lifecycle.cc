#include "server/lifecycle.h"

#include <chrono>
#include <utility>

namespace condense {
namespace {

// A drain must end soon after its last call does, a stall needs no such haste.
constexpr std::chrono::milliseconds kDrainTick{20};
constexpr std::chrono::milliseconds kWatchTick{200};

}  // namespace

Lifecycle::Lifecycle(std::function<Progress()> progress, absl::Duration stall_timeout,
                     std::function<void(ServingState)> on_change)
    : progress_(std::move(progress)),
      stall_timeout_(stall_timeout),
      on_change_(std::move(on_change)),
      start_(absl::Now()),
      last_progress_(start_) {}

Lifecycle::~Lifecycle() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wake_.Signal();
  if (thread_.joinable()) thread_.join();
  FinishDrains(progress_(), absl::Now(), /*all=*/true);
}

void Lifecycle::Start() {
  thread_ = std::thread([this] { Run(); });
}

ServingState Lifecycle::state() const {
  MutexLock lock(&mutex_);
  return state_;
}

void Lifecycle::Drain(absl::Duration timeout, DrainDone done) {
  {
    MutexLock lock(&mutex_);
    draining_ = true;
    drains_.push_back({absl::Now() + timeout, std::move(done)});
  }
  wake_.Signal();
}

bool Lifecycle::WaitForTick() {
  MutexLock lock(&mutex_);
  if (!stopping_) wake_.WaitFor(&mutex_, draining_ ? kDrainTick : kWatchTick);
  return !stopping_;
}

void Lifecycle::Look(const Progress& progress, absl::Time now) {
  if (!progress.has_work || progress.steps != last_steps_) {
    last_steps_ = progress.steps;
    last_progress_ = now;
  }
  const bool stalled = progress.failing || now - last_progress_ > stall_timeout_;
  ServingState next = stalled ? ServingState::kStalled : ServingState::kServing;
  {
    MutexLock lock(&mutex_);
    if (draining_) next = ServingState::kDraining;
    if (next == state_) return;
    state_ = next;
  }
  on_change_(next);
}

void Lifecycle::FinishDrains(const Progress& progress, absl::Time now, bool all) {
  std::vector<DrainDone> finished;
  {
    MutexLock lock(&mutex_);
    std::vector<PendingDrain> pending;
    for (PendingDrain& drain : drains_) {
      const bool over = all || progress.calls == 0 || now >= drain.until;
      if (over) {
        finished.push_back(std::move(drain.done));
      } else {
        pending.push_back(std::move(drain));
      }
    }
    drains_ = std::move(pending);
  }
  for (const DrainDone& done : finished) done(progress.calls);
}

void Lifecycle::Run() {
  on_change_(ServingState::kServing);
  do {
    const Progress progress = progress_();
    const absl::Time now = absl::Now();
    Look(progress, now);
    FinishDrains(progress, now, /*all=*/false);
  } while (WaitForTick());
}

}  // namespace condense
