// Any bytes as a model file: parser, typed access, config and weights refuse or load them, inside
// the file's bounds and in memory proportional to its size.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/gguf.h"
#include "engine/model_config.h"
#include "engine/weights.h"
#include "kernels/base/check.h"
#include "tests/support/reference_backend.h"

namespace condense {
namespace {

// Rows are padded to groups of 16 and tensors to 64 bytes; the least tensor takes 32 bytes of the
// file's list.
constexpr int64_t kMostBytesPerFileByte = 24;

void TryEveryAccess(const GgufFile& file, const std::string& key) {
  constexpr int64_t kLow = -1000, kHigh = 1000;
  const auto number = file.Int(key, kLow, kHigh);
  if (number.ok()) CHECK(*number >= kLow && *number <= kHigh);
  const auto real = file.Float(key, kLow, kHigh);
  if (real.ok()) CHECK(*real >= kLow && *real <= kHigh);
  const auto texts = file.Strings(key);
  if (texts.ok()) {
    size_t bytes = 0;
    for (const std::string_view text : **texts) bytes += text.size();
    CHECK_LE(static_cast<int64_t>(bytes), file.size_bytes());
  }
  // Whether these succeed is the sanitizers' concern only.
  static_cast<void>(file.BoolOr(key, false).ok());
  static_cast<void>(file.String(key).ok());
  static_cast<void>(file.Floats(key).ok());
  static_cast<void>(file.Ints(key).ok());
}

void Try(const std::byte* data, size_t size) {
  const auto file = GgufFile::Parse(data, size, "fuzz");
  if (!file.ok()) {
    CHECK(!file.status().message().empty());
    return;
  }
  for (const auto& [key, value] : (*file)->metadata()) TryEveryAccess(**file, key);
  for (const GgufTensor& tensor : (*file)->tensors()) {
    CHECK(tensor.data >= data && tensor.size_bytes <= data + size - tensor.data);
  }
  const auto config = ReadModelConfig(**file);
  if (!config.ok()) return;
  CHECK_EQ(config->num_heads % config->num_kv_heads, 0);
  ReferenceBackend backend;
  const auto weights = Weights::Load(&backend, **file, *config);
  if (!weights.ok()) return;
  CHECK_LE((*weights)->bytes, kMostBytesPerFileByte * static_cast<int64_t>(size));
}

}  // namespace
}  // namespace condense

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  condense::Try(reinterpret_cast<const std::byte*>(data), size);
  return 0;
}
