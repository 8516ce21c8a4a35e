#include "tests/support/fault_backend.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/check.h"
#include "kernels/base/thread_cpu_time.h"

namespace condense {

FaultBackend::FaultBackend(std::unique_ptr<Backend> wrapped) : wrapped_(std::move(wrapped)) {}

bool FaultBackend::Enter(const char* op) {
  const int64_t index = num_ops_++;
  if (error_.ok() && index == failing_op_) {
    error_ = absl::InternalError(absl::StrFormat("injected failure of op %d (%s)", index, op));
  }
  return error_.ok();
}

BackendInfo FaultBackend::Info() const { return wrapped_->Info(); }

absl::StatusOr<Buffer> FaultBackend::Allocate(int64_t size_bytes) {
  const int64_t index = num_allocations_++;
  if (index == failing_allocation_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("injected failure of allocation %d: asked for %d bytes, 0 are available",
                        index, size_bytes));
  }
  return wrapped_->Allocate(size_bytes);
}

void FaultBackend::Free(std::byte* /*data*/, int64_t /*size_bytes*/) {
  CheckFailed(__FILE__, __LINE__, "a buffer of the wrapped backend came here");
}

absl::Status FaultBackend::Synchronize() {
  ++num_synchronizes_;
  if (error_.ok()) return wrapped_->Synchronize();
  const absl::Status error = error_;
  if (!device_is_lost_) error_ = absl::OkStatus();
  return error;
}

void FaultBackend::CopyToDevice(std::byte* to, const std::byte* from, int64_t size_bytes) {
  if (Enter("copy to device")) wrapped_->CopyToDevice(to, from, size_bytes);
}
void FaultBackend::CopyToHost(std::byte* to, const std::byte* from, int64_t size_bytes) {
  if (Enter("copy to host")) wrapped_->CopyToHost(to, from, size_bytes);
}
void FaultBackend::Zero(std::byte* data, int64_t size_bytes) {
  if (Enter("zero")) wrapped_->Zero(data, size_bytes);
}
void FaultBackend::Discard(std::byte* data, int64_t size_bytes) {
  if (Enter("discard")) wrapped_->Discard(data, size_bytes);
}
void FaultBackend::Embed(const EmbedArgs& args) {
  if (Enter("embed")) wrapped_->Embed(args);
}
void FaultBackend::RmsNorm(const RmsNormArgs& args) {
  if (Enter("rms norm")) wrapped_->RmsNorm(args);
}
void FaultBackend::Matmul(const MatmulArgs& args) {
  if (Enter("matmul")) wrapped_->Matmul(args);
}
void FaultBackend::Rope(const RopeArgs& args) {
  if (Enter("rope")) wrapped_->Rope(args);
}
void FaultBackend::Gate(const GateArgs& args) {
  if (Enter("gate")) wrapped_->Gate(args);
}
void FaultBackend::Add(const AddArgs& args) {
  if (Enter("add")) wrapped_->Add(args);
}
void FaultBackend::KvAppend(const KvAppendArgs& args) {
  if (Enter("kv append")) wrapped_->KvAppend(args);
}
void FaultBackend::Attention(const AttentionArgs& args) {
  if (Enter("attention")) wrapped_->Attention(args);
}
void FaultBackend::Sample(const SampleArgs& args) {
  if (!Enter("sample")) return;
  wrapped_->Sample(args);
  if (watch_) watch_(args);
}

absl::Status FaultBackend::EnterWorkerOp(const char* op) {
  while (worker_ops_held_) {
    worker_waits_ = true;
    absl::SleepFor(absl::Microseconds(100));
  }
  worker_waits_ = false;
  const std::chrono::nanoseconds until = ThreadCpuTime() + worker_op_takes_.load();
  while (ThreadCpuTime() < until) {
  }
  const int64_t index = num_worker_ops_++;
  const int64_t failing = failing_worker_op_;
  if (failing >= 0 && (device_is_lost_ ? index >= failing : index == failing)) {
    return absl::InternalError(absl::StrFormat("injected failure of op %d (%s)", index, op));
  }
  return absl::OkStatus();
}
absl::Status FaultBackend::KvRead(const KvReadArgs& args) {
  const absl::Status status = EnterWorkerOp("kv read");
  return status.ok() ? wrapped_->KvRead(args) : status;
}
absl::Status FaultBackend::KvBuild(const KvBuildArgs& args) {
  const absl::Status status = EnterWorkerOp("kv build");
  return status.ok() ? wrapped_->KvBuild(args) : status;
}
absl::Status FaultBackend::KvEvaluate(const KvEvaluateArgs& args) {
  const absl::Status status = EnterWorkerOp("kv evaluate");
  return status.ok() ? wrapped_->KvEvaluate(args) : status;
}

}  // namespace condense
