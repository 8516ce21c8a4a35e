#ifndef CONDENSE_ENGINE_COMPRESSION_CONTROL_H_
#define CONDENSE_ENGINE_COMPRESSION_CONTROL_H_

// What operators decide about compaction while the engine runs: the default of new requests, and
// whether anything is compacted at all.

#include <atomic>
#include <utility>

#include "cache/compression.h"
#include "kernels/base/mutex.h"

namespace condense {

// Threads: thread-safe; its lock is a leaf.
class CompressionControl {
 public:
  explicit CompressionControl(Compression initial) : default_(std::move(initial)) {}

  void SetDefault(Compression compression) {
    MutexLock lock(&mutex_);
    default_ = std::move(compression);
  }
  Compression Default() const {
    MutexLock lock(&mutex_);
    return default_;
  }
  void Pause(bool paused) { paused_.store(paused, std::memory_order_relaxed); }
  bool paused() const { return paused_.load(std::memory_order_relaxed); }

  // "holding": paused. "compacting": new requests are compacted unless they ask for another preset.
  // "uncompressed": the other way round.
  const char* mode() const {
    if (paused()) return "holding";
    MutexLock lock(&mutex_);
    return default_.active() ? "compacting" : "uncompressed";
  }

 private:
  std::atomic<bool> paused_{false};
  mutable Mutex mutex_;
  Compression default_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_COMPRESSION_CONTROL_H_
