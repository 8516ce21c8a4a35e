#ifndef CONDENSE_TESTS_SUPPORT_FAULT_BACKEND_H_
#define CONDENSE_TESTS_SUPPORT_FAULT_BACKEND_H_

// Wraps a backend and fails on command: the n-th op, or the n-th allocation. Counts calls, so that
// a test can fail each of them in turn.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "kernels/backend.h"

namespace condense {

// One thread; KvRead, KvBuild and KvEvaluate from one more, with a count of their own. A failed op
// does nothing; neither does any op or copy after it until Synchronize has returned the failure; if
// the device is lost, it returns it from then on. A failed allocation is RESOURCE_EXHAUSTED and
// leaves the backend healthy.
class FaultBackend final : public Backend {
 public:
  explicit FaultBackend(std::unique_ptr<Backend> wrapped);

  // The op with this index, counted from 0 over all ops (copies, Zero and Discard included) since
  // construction, fails. Negative: none.
  void FailOp(int64_t index) { failing_op_ = index; }
  // Likewise over KvRead, KvBuild and KvEvaluate alone: the call returns the failure and does
  // nothing, and later calls are not affected unless the device is lost.
  void FailWorkerOp(int64_t index) { failing_worker_op_ = index; }
  // While held, KvRead, KvBuild and KvEvaluate do not begin: their thread waits. Thread-safe.
  void HoldWorkerOps(bool held) { worker_ops_held_ = held; }
  bool worker_waits() const { return worker_waits_; }
  // From now on each of them takes so much more of its thread's CPU time. Thread-safe.
  void SlowWorkerOps(std::chrono::nanoseconds more) { worker_op_takes_ = more; }
  // Called on the engine's thread after each Sample with what it gave; may change and hold it up.
  // Before the backend is used. REQUIRES: the wrapped one's Sample is done when it returns.
  void WatchSample(std::function<void(const SampleArgs&)> watch) { watch_ = std::move(watch); }
  // Whether a failure is for good.
  void set_device_is_lost(bool lost) { device_is_lost_ = lost; }
  // Likewise for allocations.
  void FailAllocation(int64_t index) { failing_allocation_ = index; }

  int64_t num_ops() const { return num_ops_; }
  int64_t num_worker_ops() const { return num_worker_ops_; }
  int64_t num_allocations() const { return num_allocations_; }
  int64_t num_synchronizes() const { return num_synchronizes_; }

  BackendInfo Info() const override;
  absl::StatusOr<Buffer> Allocate(int64_t size_bytes) override;
  void CopyToDevice(std::byte* to, const std::byte* from, int64_t size_bytes) override;
  void CopyToHost(std::byte* to, const std::byte* from, int64_t size_bytes) override;
  void Zero(std::byte* data, int64_t size_bytes) override;
  void Discard(std::byte* data, int64_t size_bytes) override;
  absl::Status Synchronize() override;

  void Embed(const EmbedArgs& args) override;
  void RmsNorm(const RmsNormArgs& args) override;
  void Matmul(const MatmulArgs& args) override;
  void Rope(const RopeArgs& args) override;
  void Gate(const GateArgs& args) override;
  void Add(const AddArgs& args) override;
  void KvAppend(const KvAppendArgs& args) override;
  void Attention(const AttentionArgs& args) override;
  void Sample(const SampleArgs& args) override;
  absl::Status KvRead(const KvReadArgs& args) override;
  absl::Status KvBuild(const KvBuildArgs& args) override;
  absl::Status KvEvaluate(const KvEvaluateArgs& args) override;

 protected:
  // Never called: buffers belong to the wrapped backend.
  void Free(std::byte* data, int64_t size_bytes) override;

 private:
  // Counts an op; false if it must not run.
  bool Enter(const char* op);

  absl::Status EnterWorkerOp(const char* op);

  const std::unique_ptr<Backend> wrapped_;
  std::function<void(const SampleArgs&)> watch_;
  int64_t failing_op_ = -1;
  std::atomic<bool> device_is_lost_{false};
  int64_t failing_allocation_ = -1;
  std::atomic<int64_t> failing_worker_op_{-1};
  std::atomic<bool> worker_ops_held_{false};
  std::atomic<bool> worker_waits_{false};
  std::atomic<std::chrono::nanoseconds> worker_op_takes_{std::chrono::nanoseconds(0)};
  std::atomic<int64_t> num_worker_ops_{0};
  int64_t num_ops_ = 0;
  int64_t num_allocations_ = 0;
  int64_t num_synchronizes_ = 0;
  absl::Status error_;
};

}  // namespace condense

#endif  // CONDENSE_TESTS_SUPPORT_FAULT_BACKEND_H_
