#ifndef CONDENSE_SERVER_LIFECYCLE_H_
#define CONDENSE_SERVER_LIFECYCLE_H_

// Whether the server takes requests: watches the engine's progress and carries out drains.

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"

namespace condense {

enum class ServingState : uint8_t { kServing, kDraining, kStalled };

// What the watch looks at.
struct Progress {
  uint64_t steps = 0;     // engine steps so far
  bool has_work = false;  // steps are expected
  bool failing = false;   // the last steps all failed
  int32_t calls = 0;      // requests that run, wait, or are still being delivered
};

// Owns: the watching thread. Threads: thread-safe after Start.
class Lifecycle {
 public:
  // `remaining` calls were not over when the drain's time was.
  using DrainDone = std::function<void(int32_t remaining)>;

  // kStalled is entered when steps fail, or when has_work holds and no step ended for
  // `stall_timeout`, and left with the next step; a server that drains stays kDraining. `on_change`
  // is called by the watching thread after each change of state, and once at the start.
  Lifecycle(std::function<Progress()> progress, absl::Duration stall_timeout,
            std::function<void(ServingState)> on_change);
  // Pending drains are told what remains.
  ~Lifecycle();
  // Starts the watch. Once.
  void Start();

  ServingState state() const;
  absl::Duration uptime() const { return absl::Now() - start_; }

  // Enters kDraining for good. `done` is called once, by the watching thread, when no call is left
  // or when `timeout` has passed. The caller has told the engine to refuse new requests.
  void Drain(absl::Duration timeout, DrainDone done);

 private:
  struct PendingDrain {
    absl::Time until;
    DrainDone done;
  };

  void Run();
  // True until the destructor asks to stop.
  bool WaitForTick();
  void Look(const Progress& progress, absl::Time now);
  void FinishDrains(const Progress& progress, absl::Time now, bool all);

  const std::function<Progress()> progress_;
  const absl::Duration stall_timeout_;
  const std::function<void(ServingState)> on_change_;
  const absl::Time start_;

  mutable Mutex mutex_;  // a leaf
  CondVar wake_;
  ServingState state_ ABSL_GUARDED_BY(mutex_) = ServingState::kServing;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<PendingDrain> drains_ ABSL_GUARDED_BY(mutex_);

  // The watching thread's own.
  uint64_t last_steps_ = 0;
  absl::Time last_progress_;

  std::thread thread_;
};

}  // namespace condense

#endif  // CONDENSE_SERVER_LIFECYCLE_H_
