#include "cache/compaction_pace.h"

#include <utility>

#include "kernels/base/thread_cpu_time.h"

namespace condense {

std::chrono::nanoseconds CompactionPace::BeginStep(std::chrono::nanoseconds saved) {
  MutexLock lock(&mutex_);
  const std::chrono::nanoseconds owed = allowance_.Begin(std::chrono::steady_clock::now(), saved);
  changed_.SignalAll();
  return owed;
}

void CompactionPace::Lift() {
  MutexLock lock(&mutex_);
  allowance_.Lift();
  changed_.SignalAll();
}

void CompactionPace::Await() {
  const std::chrono::nanoseconds cpu_time = ThreadCpuTime();
  MutexLock lock(&mutex_);
  allowance_.Spend(cpu_time - std::exchange(cpu_time_, cpu_time));
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
