#include "kernels/cpu/cpu_backend.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/kv_build.h"
#include "kernels/cpu/kv_decode.h"
#include "kernels/cpu/kv_ops.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/sample.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/vector_kernels.h"

namespace condense::cpu {
namespace {

constexpr int64_t kHugePage = 2 << 20;
constexpr size_t kAlignment = 64;

// The control groups (version 2) that this process is in, innermost first. Inside a container the
// path may be relative to its own root, so that only the root itself can be read.
std::vector<std::string> ControlGroups() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  std::vector<std::string> folders;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) != 0) continue;
    for (std::string path = line.substr(3); path.size() > 1; path.resize(path.rfind('/'))) {
      folders.push_back("/sys/fs/cgroup" + path);
    }
  }
  folders.push_back("/sys/fs/cgroup");
  return folders;
}

// The number that the file starts with, or `fallback` if there is none ("max").
int64_t ReadNumber(const std::string& path, int64_t fallback) {
  std::ifstream file(path);
  int64_t value;
  return file >> value ? value : fallback;
}

int CoresOfProcess() {
  int cores = std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = std::max(1, CPU_COUNT(&set));
  // More threads than the quota's whole cores would be throttled in the middle of an op.
  for (const std::string& folder : ControlGroups()) {
    std::ifstream file(folder + "/cpu.max");
    int64_t quota, period;
    if (file >> quota >> period && period > 0) {
      cores = std::min<int64_t>(cores, std::max<int64_t>(1, quota / period));
    }
  }
  return cores;
}

// Physical memory, or what the control groups (version 2, else 1) allow if that is less.
int64_t MemoryBytes() {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  for (const std::string& folder : ControlGroups()) {
    bytes = std::min(bytes, ReadNumber(folder + "/memory.max", bytes));
  }
  return std::min(bytes, ReadNumber("/sys/fs/cgroup/memory/memory.limit_in_bytes", bytes));
}

absl::StatusOr<CpuIsa> ChooseIsa(const std::string& name) {
  if (name == "auto") return DetectCpuIsa();
  const std::optional<CpuIsa> isa = ParseCpuIsa(name);
  if (!isa.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown cpu_isa '", name, "'; known are auto, scalar, avx2, avx512vnni"));
  }
  if (!CpuHas(*isa)) {
    return absl::FailedPreconditionError(
        absl::StrCat("cpu_isa '", name, "' is not available on this machine, whose best is '",
                     CpuIsaName(DetectCpuIsa()), "'"));
  }
  return *isa;
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(CpuIsa isa, int num_threads)
      : isa_(isa),
        kernels_(GetVectorKernels(isa)),
        memory_bytes_(MemoryBytes()),
        pool_(num_threads),
        attention_(&kernels_, &pool_),
        sample_(&kernels_, &pool_),
        evaluation_(&kernels_, &no_pool_),
        kv_decoder_(&kernels_),
        kv_builder_(&kernels_) {}
  ~CpuBackend() override { DCHECK_EQ(allocated_bytes_.load(), 0); }

  BackendInfo Info() const override {
    return {"cpu",
            absl::StrFormat("%d thread%s, %s", pool_.num_threads(),
                            pool_.num_threads() == 1 ? "" : "s", CpuIsaName(isa_)),
            memory_bytes_, pool_.num_threads()};
  }
  absl::StatusOr<Buffer> Allocate(int64_t size_bytes) override;
  void CopyToDevice(std::byte* to, const std::byte* from, int64_t size_bytes) override {
    Copy(to, from, size_bytes);
  }
  void CopyToHost(std::byte* to, const std::byte* from, int64_t size_bytes) override {
    Copy(to, from, size_bytes);
  }
  void Zero(std::byte* data, int64_t size_bytes) override {
    if (size_bytes > 0) std::memset(data, 0, size_bytes);
  }
  void Discard(std::byte* data, int64_t size_bytes) override;
  absl::Status Synchronize() override { return absl::OkStatus(); }

  void Embed(const EmbedArgs& args) override { cpu::Embed(args, &pool_); }
  void RmsNorm(const RmsNormArgs& args) override { cpu::RmsNorm(args, kernels_, &pool_); }
  void Matmul(const MatmulArgs& args) override {
    cpu::Matmul(args, isa_, &pool_, &matmul_scratch_);
  }
  void Rope(const RopeArgs& args) override { cpu::Rope(args, kernels_, &pool_); }
  void Gate(const GateArgs& args) override { cpu::Gate(args, kernels_, &pool_); }
  void Add(const AddArgs& args) override { cpu::Add(args, kernels_, &pool_); }
  void KvAppend(const KvAppendArgs& args) override { cpu::KvAppend(args, kernels_, &pool_); }
  void Attention(const AttentionArgs& args) override { attention_.Run(args); }
  void Sample(const SampleArgs& args) override { sample_.Run(args); }
  absl::Status KvRead(const KvReadArgs& args) override {
    kv_decoder_.Read(args);
    return absl::OkStatus();
  }
  absl::Status KvBuild(const KvBuildArgs& args) override {
    kv_builder_.Run(args);
    return absl::OkStatus();
  }
  absl::Status KvEvaluate(const KvEvaluateArgs& args) override {
    evaluation_.Evaluate(args);
    return absl::OkStatus();
  }

 private:
  static void Copy(std::byte* to, const std::byte* from, int64_t size_bytes) {
    if (size_bytes > 0) std::memcpy(to, from, size_bytes);
  }
  void Free(std::byte* data, int64_t size_bytes) override;

  const CpuIsa isa_;
  const VectorKernels& kernels_;
  const int64_t memory_bytes_;
  std::atomic<int64_t> allocated_bytes_{0};
  ThreadPool pool_;
  MatmulScratch matmul_scratch_;
  AttentionRunner attention_;
  SampleRunner sample_;
  // Of the thread that calls KvRead, KvBuild and KvEvaluate.
  ThreadPool no_pool_{1};
  AttentionRunner evaluation_;
  KvDecoder kv_decoder_;
  KvBuilder kv_builder_;
};

// Null when the machine refuses.
std::byte* MapPages(int64_t size_bytes) {
  // Room to start at a huge page boundary; what is never touched costs nothing.
  void* pages = mmap(nullptr, size_bytes + kHugePage, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  std::byte* const begin = static_cast<std::byte*>(pages);
  const int64_t misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin) % kHugePage);
  const int64_t before = misaligned == 0 ? 0 : kHugePage - misaligned;
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t used = (size_bytes + page - 1) / page * page;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + used, kHugePage - before);
  // Only advice: without huge pages the buffer is as correct, and slower.
  madvise(begin + before, used, MADV_HUGEPAGE);
  return begin + before;
}

std::byte* AllocateSmall(int64_t size_bytes) {
  const size_t rounded =
      (static_cast<size_t>(size_bytes) + kAlignment - 1) / kAlignment * kAlignment;
  void* data = std::aligned_alloc(kAlignment, rounded);
  if (data != nullptr) std::memset(data, 0, rounded);
  return static_cast<std::byte*>(data);
}

absl::StatusOr<Buffer> CpuBackend::Allocate(int64_t size_bytes) {
  if (size_bytes < 0)
    return absl::InvalidArgumentError(absl::StrCat("size_bytes ", size_bytes, " is negative"));
  if (size_bytes == 0) return Buffer();
  const int64_t available = memory_bytes_ - allocated_bytes_.load();
  std::byte* data = nullptr;
  if (size_bytes <= available)
    data = size_bytes >= kHugePage ? MapPages(size_bytes) : AllocateSmall(size_bytes);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("cpu memory: asked for %d bytes, %d of %d bytes are available", size_bytes,
                        available, memory_bytes_));
  }
  allocated_bytes_ += size_bytes;
  return Buffer(this, data, size_bytes);
}

void CpuBackend::Free(std::byte* data, int64_t size_bytes) {
  allocated_bytes_ -= size_bytes;
  if (size_bytes >= kHugePage) {
    CHECK_EQ(munmap(data, size_bytes), 0);
  } else {
    std::free(data);
  }
}

void CpuBackend::Discard(std::byte* data, int64_t size_bytes) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t from = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t to = (reinterpret_cast<uintptr_t>(data) + size_bytes) / page * page;
  // Only advice: what the machine does not take back stays as it is.
  if (from < to) madvise(reinterpret_cast<void*>(from), to - from, MADV_DONTNEED);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const BackendOptions& options) {
  constexpr int kMaxThreads = 1024;
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrFormat("num_threads is %d; it must be between 0 (one per core) and %d",
                        options.num_threads, kMaxThreads));
  }
  absl::StatusOr<CpuIsa> isa = ChooseIsa(options.cpu_isa);
  if (!isa.ok()) return isa.status();
  const int num_threads = options.num_threads > 0 ? options.num_threads : CoresOfProcess();
  return std::make_unique<CpuBackend>(*isa, num_threads);
}

}  // namespace condense::cpu
