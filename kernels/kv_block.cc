#include "kernels/kv_block.h"

#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr int64_t kBlockAlignment = 64;

int64_t AlignUp(int64_t bytes) {
  return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

int64_t KeyBytes(KvFormat format, const KvBlockShape& shape) {
  CHECK(format == KvFormat::kK16V16);
  return int64_t{2} * shape.head_dim * shape.block_tokens;
}

int64_t ValueBytes(KvFormat format, const KvBlockShape& shape) {
  CHECK(format == KvFormat::kK16V16);
  return int64_t{2} * shape.head_dim * shape.block_tokens;
}

}  // namespace

int64_t KvBlockBytes(KvFormat format, const KvBlockShape& shape) {
  return AlignUp(KvValuesOffset(format, shape) + ValueBytes(format, shape));
}

int64_t KvValuesOffset(KvFormat format, const KvBlockShape& shape) {
  return AlignUp(KeyBytes(format, shape));
}

}  // namespace condense
