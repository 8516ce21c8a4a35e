#include "cache/compaction_pace.h"

#include <time.h>

#include <utility>

namespace condense {
namespace {

std::chrono::nanoseconds ThreadCpuTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

void CompactionPace::BeginStep(std::chrono::nanoseconds saved) {
  MutexLock lock(&mutex_);
  allowance_.Begin(std::chrono::steady_clock::now(), saved);
  changed_.SignalAll();
}

void CompactionPace::Lift() {
  MutexLock lock(&mutex_);
  allowance_.Lift();
  changed_.SignalAll();
}

std::chrono::nanoseconds CompactionPace::TakeSpent() {
  MutexLock lock(&mutex_);
  return std::exchange(spent_, std::chrono::nanoseconds(0));
}

void CompactionPace::Await() {
  const std::chrono::nanoseconds cpu_time = ThreadCpuTime();
  MutexLock lock(&mutex_);
  const std::chrono::nanoseconds spent = cpu_time - std::exchange(cpu_time_, cpu_time);
  allowance_.Spend(spent);
  spent_ += spent;
  while (true) {
    const auto next = allowance_.Next();
    const auto now = std::chrono::steady_clock::now();
    if (next <= now) return;
    if (next == StepAllowance::Time::max()) {
      changed_.Wait(&mutex_);
    } else {
      changed_.WaitFor(&mutex_, next - now);
    }
  }
}

}  // namespace condense
