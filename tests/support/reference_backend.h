#ifndef CONDENSE_TESTS_SUPPORT_REFERENCE_BACKEND_H_
#define CONDENSE_TESTS_SUPPORT_REFERENCE_BACKEND_H_

// The oracle of the op tests: every op of Backend as plain scalar loops with double accumulation.
//
// Each row is computed on its own, so that "chunked = whole" and "batch = singles" hold bit for
// bit. Packed weights are read by UnpackRow and meet unquantized activations: backends that
// quantize activations to int8 differ by that error.

#include <cstdint>

#include "kernels/backend.h"

namespace condense {

// One thread. Memory is host memory.
class ReferenceBackend final : public Backend {
 public:
  static constexpr int64_t kMemoryBytes = int64_t{1} << 34;

  ReferenceBackend() = default;
  ~ReferenceBackend() override;

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
  void Free(std::byte* data, int64_t size_bytes) override;

 private:
  int64_t allocated_bytes_ = 0;
};

// The Sample op for one row, by sorting the vocabulary.
SampleResult ReferenceSample(const float* logits, int32_t vocab, const SampleRow& params);

}  // namespace condense

#endif  // CONDENSE_TESTS_SUPPORT_REFERENCE_BACKEND_H_
