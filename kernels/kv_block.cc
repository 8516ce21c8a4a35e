#include "kernels/kv_block.h"

#include <cstring>

#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/kv_codes.h"

namespace condense {
namespace {

constexpr int64_t kBlockAlignment = 64;

int64_t AlignUp(int64_t bytes) {
  return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

// Takes `bytes` at a multiple of 64 from a block that is being laid out and returns their offset.
int64_t Place(int64_t bytes, int64_t* end) {
  const int64_t at = AlignUp(*end);
  *end = at + bytes;
  return at;
}

// Lower plane, upper plane and scales of `rows` rows of `cols` elements.
void PlaceVectors(int bits, int64_t rows, int64_t cols, int64_t block_tokens, int64_t* lower,
                  int64_t* upper, int64_t* scales, int64_t* end) {
  if (bits == 16) {
    *lower = Place(2 * rows * cols, end);
    *upper = *scales = AlignUp(*end);
    return;
  }
  *lower = Place(rows * KvPlaneRowBytes(cols, KvLowerBits(bits)), end);
  *upper = Place(rows * KvPlaneRowBytes(cols, KvUpperBits(bits)), end);
  *scales = Place(2 * block_tokens, end);
}

}  // namespace

std::optional<KvFormat> MakeKvFormat(int key_bits, int value_bits) {
  for (int i = 0; i < kNumKvFormats; ++i) {
    const KvFormat format = static_cast<KvFormat>(i);
    if (KvKeyBits(format) == key_bits && KvValueBits(format) == value_bits) return format;
  }
  return std::nullopt;
}

std::string KvFormatName(KvFormat format) {
  return absl::StrFormat("k%dv%d", KvKeyBits(format), KvValueBits(format));
}

std::optional<KvFormat> ParseKvFormat(std::string_view name) {
  for (int i = 0; i < kNumKvFormats; ++i) {
    if (KvFormatName(static_cast<KvFormat>(i)) == name) return static_cast<KvFormat>(i);
  }
  return std::nullopt;
}

KvBlockPieces KvPieces(KvFormat format, KvBlockFlags flags, const KvBlockShape& shape) {
  const int64_t head_dim = shape.head_dim;
  const int64_t block_tokens = shape.block_tokens;
  KvBlockPieces pieces;
  int64_t end = 0;
  PlaceVectors(KvKeyBits(format), head_dim, block_tokens, block_tokens, &pieces.keys,
               &pieces.key_upper, &pieces.key_scales, &end);
  PlaceVectors(KvValueBits(format), block_tokens, head_dim, block_tokens, &pieces.values,
               &pieces.value_upper, &pieces.value_scales, &end);
  // Small arrays follow each other without gaps, widest alignment first.
  pieces.bias = AlignUp(end);
  pieces.distances = pieces.bias + ((flags & kKvBias) != 0 ? 2 * block_tokens : 0);
  pieces.base = pieces.distances + ((flags & kKvPosition) != 0 ? 2 * block_tokens : 0);
  pieces.counts = pieces.base + ((flags & (kKvPosition | kKvRun)) != 0 ? 4 : 0);
  end = pieces.counts + ((flags & kKvCount) != 0 ? block_tokens : 0);
  pieces.bytes = AlignUp(end);
  return pieces;
}

int64_t KvBlockBytes(KvFormat format, const KvBlockShape& shape, KvBlockFlags flags) {
  return KvPieces(format, flags, shape).bytes;
}

int64_t KvValuesOffset(KvFormat format, const KvBlockShape& shape) {
  return KvPieces(format, 0, shape).values;
}

int64_t KvPositionOf(const std::byte* block, const KvBlockRef& ref, const KvBlockShape& shape,
                     int entry) {
  DCHECK((ref.flags & (kKvPosition | kKvRun)) != 0);
  const KvBlockPieces pieces = KvPieces(ref.format, ref.flags, shape);
  uint32_t base;
  std::memcpy(&base, block + pieces.base, sizeof(base));
  if ((ref.flags & kKvRun) != 0) return int64_t{base} + entry;
  uint16_t distance;
  std::memcpy(&distance, block + pieces.distances + 2 * entry, sizeof(distance));
  return int64_t{base} + distance;
}

}  // namespace condense
