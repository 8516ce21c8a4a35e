#ifndef CONDENSE_ENGINE_GGUF_H_
#define CONDENSE_ENGINE_GGUF_H_

// A memory-mapped GGUF v2/v3 model file: metadata and tensor directory, every number checked before
// it is used.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace condense {

enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
const char* GgufTypeName(GgufType type);

// Tensor element types by their GGUF numbers. Only known ones appear in a loaded file's tensors.
enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBf16 = 30,
};
// Elements per block, bytes per block, name. REQUIRES: a known type.
int64_t TensorBlockElements(TensorType type);
int64_t TensorBlockBytes(TensorType type);
const char* TensorTypeName(TensorType type);

// A metadata value. Arrays are views into the mapped file; strings of a string array are found
// through `strings`.
struct GgufArray {
  GgufType element_type = GgufType::kUint8;
  uint64_t size = 0;
  const std::byte* data = nullptr;        // fixed-size elements, unaligned, little-endian
  std::vector<std::string_view> strings;  // kString elements
};
struct GgufValue {
  GgufType type = GgufType::kUint8;
  // uint64 for unsigned types and bool, int64 for signed ones, double for floats.
  std::variant<uint64_t, int64_t, double, std::string_view, GgufArray> value;
};

struct GgufTensor {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> dims;  // innermost first, as the file has them: [cols, rows, ...]
  const std::byte* data = nullptr;
  int64_t size_bytes = 0;
};

// Owns: the mapping. Threads: immutable after Open; thread-safe.
// Errors: DATA_LOSS for a malformed file, NOT_FOUND / PERMISSION_DENIED / INVALID_ARGUMENT for a
// path that cannot be read, UNIMPLEMENTED for an unknown tensor type (with the list of known ones).
// Every message names the file, the key or tensor, the offending value and the limit. No allocation
// is made in proportion to an unchecked number.
class GgufFile {
 public:
  // REQUIRES: nobody shortens the file while it is open (a mapped page that is gone ends the
  // process).
  static absl::StatusOr<std::unique_ptr<const GgufFile>> Open(const std::string& path);
  // For tests and fuzzers: parse bytes that the caller keeps alive.
  static absl::StatusOr<std::unique_ptr<const GgufFile>> Parse(const std::byte* data, size_t size,
                                                               std::string name);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size_bytes() const { return static_cast<int64_t>(size_); }
  uint32_t version() const { return version_; }
  // In file order.
  const std::vector<std::pair<std::string, GgufValue>>& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }

  const GgufValue* Find(std::string_view key) const;
  const GgufTensor* FindTensor(std::string_view name) const;

  // Typed access. Required: NOT_FOUND-like DATA_LOSS naming the key when absent, DATA_LOSS when of
  // another type or out of [low, high]. Optional: the default when absent; still an error when of
  // another type or out of range.
  absl::StatusOr<int64_t> Int(std::string_view key, int64_t low, int64_t high) const;
  absl::StatusOr<int64_t> IntOr(std::string_view key, int64_t low, int64_t high,
                                int64_t otherwise) const;
  absl::StatusOr<double> Float(std::string_view key, double low, double high) const;
  absl::StatusOr<double> FloatOr(std::string_view key, double low, double high,
                                 double otherwise) const;
  absl::StatusOr<bool> BoolOr(std::string_view key, bool otherwise) const;
  absl::StatusOr<std::string> String(std::string_view key) const;
  absl::StatusOr<std::string> StringOr(std::string_view key, std::string_view otherwise) const;
  absl::StatusOr<const std::vector<std::string_view>*> Strings(std::string_view key) const;
  absl::StatusOr<std::vector<float>> Floats(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> Ints(std::string_view key) const;

 private:
  GgufFile() = default;
  absl::Status Fill(std::string name);

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  bool mapped_ = false;
  uint32_t version_ = 0;
  std::vector<std::pair<std::string, GgufValue>> metadata_;
  std::vector<GgufTensor> tensors_;
  absl::flat_hash_map<std::string, size_t> metadata_index_, tensor_index_;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_GGUF_H_
