#ifndef CONDENSE_KERNELS_BACKEND_H_
#define CONDENSE_KERNELS_BACKEND_H_

// THE seam between the engine and the machine that computes: memory, coarse ops, Synchronize().

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/op_args.h"

namespace condense {

class Backend;

// Move-only owner of a piece of backend memory, aligned to 64 bytes; freed with the buffer.
// REQUIRES: the backend outlives it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend* backend, std::byte* data, int64_t size)
      : backend_(backend), data_(data), size_(size) {}
  Buffer(Buffer&& other) noexcept { Swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Swap(other);
    return *this;
  }
  ~Buffer();

  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void Swap(Buffer& other);

  Backend* backend_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

struct BackendInfo {
  std::string name;          // "cpu", "cuda", "reference"
  std::string device;        // for people: "2 threads, avx512-vnni"
  int64_t memory_bytes = 0;  // of the device (CPU: physical RAM)
  int32_t num_threads = 0;   // of this machine's cores that its ops keep busy
};

// Threads: one owner thread calls everything (the engine's); Allocate/Free may be called by the
// thread that builds or destroys the engine. Ops are enqueued in order and return at once; host
// arguments have been read when the call returns, except results, which are valid after
// Synchronize(). Errors: after a failure ops do nothing until Synchronize() has reported it, once;
// what the failed ops should have written is undefined. A device that is lost for good reports the
// error from every Synchronize().
// KvRead, KvBuild and KvEvaluate alone may also be called by one other thread at a time (the
// compaction worker's), while the owner calls other ops: they use no thread and no scratch of those
// ops, have finished when they return, and return their own failure. Their queries and results are
// host memory. The caller sees to it that blocks which it builds or reads are not written or
// discarded by others meanwhile.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual BackendInfo Info() const = 0;
  // RESOURCE_EXHAUSTED with the size asked and what is available. Fresh memory is zero; pages of
  // large buffers are committed when first touched where the machine allows it.
  virtual absl::StatusOr<Buffer> Allocate(int64_t size_bytes) = 0;
  virtual void CopyToDevice(std::byte* to, const std::byte* from, int64_t size_bytes) = 0;
  virtual void CopyToHost(std::byte* to, const std::byte* from, int64_t size_bytes) = 0;
  virtual void Zero(std::byte* data, int64_t size_bytes) = 0;
  // The contents are not needed any more: what the memory holds until it is written again is
  // unspecified. The machine may get back the pages that lie in it as a whole.
  virtual void Discard(std::byte* data, int64_t size_bytes) = 0;
  // Waits for everything enqueued; returns the first failure since the last call.
  virtual absl::Status Synchronize() = 0;

  virtual void Embed(const EmbedArgs& args) = 0;
  virtual void RmsNorm(const RmsNormArgs& args) = 0;
  virtual void Matmul(const MatmulArgs& args) = 0;
  virtual void Rope(const RopeArgs& args) = 0;
  virtual void Gate(const GateArgs& args) = 0;
  virtual void Add(const AddArgs& args) = 0;
  virtual void KvAppend(const KvAppendArgs& args) = 0;
  virtual void Attention(const AttentionArgs& args) = 0;
  virtual void Sample(const SampleArgs& args) = 0;
  virtual absl::Status KvRead(const KvReadArgs& args) = 0;
  virtual absl::Status KvBuild(const KvBuildArgs& args) = 0;
  virtual absl::Status KvEvaluate(const KvEvaluateArgs& args) = 0;

 protected:
  friend class Buffer;
  virtual void Free(std::byte* data, int64_t size_bytes) = 0;
};

struct BackendOptions {
  std::string kind = "auto";  // auto | cpu | cuda
  int num_threads = 0;        // CPU: 0 takes one per core
  std::string cpu_isa =
      "auto";  // auto | scalar | avx2 | avx512vnni: a cap, for tests and for finding faults
};

// INVALID_ARGUMENT for an unknown kind or instruction set, FAILED_PRECONDITION for one that this
// machine or this build lacks.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options);

}  // namespace condense

#endif  // CONDENSE_KERNELS_BACKEND_H_
