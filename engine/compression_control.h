#ifndef CONDENSE_ENGINE_COMPRESSION_CONTROL_H_
#define CONDENSE_ENGINE_COMPRESSION_CONTROL_H_

// What operators and guardrails decide about compaction while the engine runs: the default of new
// requests, and whether anything is compacted at all.

#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "cache/compression.h"
#include "engine/quality/guard_report.h"
#include "engine/quality/guardrail.h"
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

  // What the guard decided, and why. The engine thread's; never called where there is none.
  void SetGuard(GuardrailMode mode, std::string reason) {
    MutexLock lock(&mutex_);
    guard_ = Decided{mode, std::move(reason)};
  }
  // What the guardrails read in the last evaluation window. The engine thread's, as above.
  void SetReports(const GuardReports& reports) {
    MutexLock lock(&mutex_);
    reports_ = reports;
  }
  GuardReports reports() const {
    MutexLock lock(&mutex_);
    return reports_;
  }
  // The mode that the guard is to keep whatever it reads; nothing: it decides.
  void Force(std::optional<GuardrailMode> mode) {
    MutexLock lock(&mutex_);
    forced_ = mode;
  }
  std::optional<GuardrailMode> forced() const {
    MutexLock lock(&mutex_);
    return forced_;
  }

  // Where there is a guard, its mode, but "holding" where a pause stops what it allows, and
  // "uncompressed" where it allows what requests do not get by default. Else "holding": paused.
  // "compacting": new requests are compacted unless they ask for another preset. "uncompressed":
  // the other way round.
  const char* mode() const {
    MutexLock lock(&mutex_);
    if (guard_.has_value()) {
      const GuardrailMode mode = forced_.value_or(guard_->mode);
      if (mode == GuardrailMode::kCompacting && !paused() && !default_.active()) {
        return GuardrailModeName(GuardrailMode::kUncompressed);
      }
      const bool holds = paused() && mode != GuardrailMode::kUncompressed;
      return GuardrailModeName(holds ? GuardrailMode::kHolding : mode);
    }
    if (paused()) return "holding";
    return default_.active() ? "compacting" : "uncompressed";
  }

  // Of the guard's mode, in words; empty where there is none.
  std::string reason() const {
    MutexLock lock(&mutex_);
    if (!guard_.has_value()) return "";
    return forced_.has_value() ? ForcedReason(*forced_) : guard_->reason;
  }

 private:
  struct Decided {
    GuardrailMode mode;
    std::string reason;
  };

  std::atomic<bool> paused_{false};
  mutable Mutex mutex_;
  Compression default_ ABSL_GUARDED_BY(mutex_);
  std::optional<Decided> guard_ ABSL_GUARDED_BY(mutex_);
  std::optional<GuardrailMode> forced_ ABSL_GUARDED_BY(mutex_);
  GuardReports reports_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_COMPRESSION_CONTROL_H_
