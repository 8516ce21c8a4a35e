#ifndef CONDENSE_ENGINE_GGUF_READER_H_
#define CONDENSE_ENGINE_GGUF_READER_H_

// Takes the bytes of a GGUF file apart: a bounds-checked cursor, and the parser that fills
// GgufContents.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/gguf.h"

namespace condense {

// Limits beyond those of the file's own size. Far above what real models need.
inline constexpr uint64_t kMaxGgufKeyBytes = 65535;
inline constexpr uint64_t kMaxGgufTensorNameBytes = 64;
inline constexpr uint64_t kMaxGgufKeys = 1 << 16;
inline constexpr uint64_t kMaxGgufTensors = 1 << 18;
inline constexpr uint32_t kMaxGgufDimensions = 4;
inline constexpr uint64_t kMaxGgufDimension = 0x7fffffff;
inline constexpr uint32_t kDefaultGgufAlignment = 32;

// Reads little-endian values from bytes that the caller keeps alive. Never reads outside them.
class GgufCursor {
 public:
  GgufCursor(const std::byte* data, size_t size) : data_(data), size_(size) {}

  size_t position() const { return position_; }
  size_t remaining() const { return size_ - position_; }
  const std::byte* here() const { return data_ + position_; }

  // False, and nothing is consumed, when fewer bytes are left.
  template <typename T>
  [[nodiscard]] bool Read(T* value) {
    if (remaining() < sizeof(T)) return false;
    std::memcpy(value, here(), sizeof(T));
    position_ += sizeof(T);
    return true;
  }
  [[nodiscard]] bool ReadBytes(uint64_t num_bytes, std::string_view* bytes) {
    if (remaining() < num_bytes) return false;
    *bytes = std::string_view(reinterpret_cast<const char*>(here()), num_bytes);
    position_ += num_bytes;
    return true;
  }

 private:
  const std::byte* data_;
  size_t size_;
  size_t position_ = 0;
};

struct GgufContents {
  uint32_t version = 0;
  std::vector<std::pair<std::string, GgufValue>> metadata;
  std::vector<GgufTensor> tensors;
  absl::flat_hash_map<std::string, size_t> metadata_index, tensor_index;
};

// Views in the result point into `data`. `name` stands at the head of every message.
absl::StatusOr<GgufContents> ParseGguf(const std::byte* data, size_t size, const std::string& name);

// Bytes of one element of a fixed-size metadata type; 0 for strings, arrays and unknown types.
size_t GgufElementBytes(GgufType type);

// `text` for an error message: quoted, cut after 80 bytes, everything but printable ASCII escaped.
std::string QuotedForMessage(std::string_view text);

}  // namespace condense

#endif  // CONDENSE_ENGINE_GGUF_READER_H_
