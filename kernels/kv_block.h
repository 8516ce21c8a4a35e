#ifndef CONDENSE_KERNELS_KV_BLOCK_H_
#define CONDENSE_KERNELS_KV_BLOCK_H_

// The byte layout of one KV block, shared by the cache and every backend; docs/kv_format.md draws
// it.
//
// A block holds up to B (32 or 64) entries of one unit (layer, KV head), physically contiguous, in
// one format. Keys are dimension-major [D, B] (one vector load covers neighbouring entries, so a
// query needs no horizontal sum and a CUDA lane owns an entry), values [B, D]. The bytes of narrow
// codes are in kv_codes.h.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace condense {

// Bits of a key element (16, 8, 6, 4) and of a value element (16, 8, 4, 3): 4 * key row + value
// row. 16 is f16; the others are codes with one f16 scale per vector. Keys of less than 16 bits
// are stored after a Hadamard transform (kernels/hadamard.h), values of 4 bits and less too.
enum class KvFormat : uint8_t {
  kK16V16,
  kK16V8,
  kK16V4,
  kK16V3,
  kK8V16,
  kK8V8,
  kK8V4,
  kK8V3,
  kK6V16,
  kK6V8,
  kK6V4,
  kK6V3,
  kK4V16,
  kK4V8,
  kK4V4,
  kK4V3,
};
inline constexpr int kNumKvFormats = 16;

constexpr int KvKeyBits(KvFormat format) {
  constexpr int kBits[] = {16, 8, 6, 4};
  return kBits[static_cast<int>(format) / 4];
}
constexpr int KvValueBits(KvFormat format) {
  constexpr int kBits[] = {16, 8, 4, 3};
  return kBits[static_cast<int>(format) % 4];
}
constexpr bool KvKeysRotated(KvFormat format) { return KvKeyBits(format) < 16; }
constexpr bool KvValuesRotated(KvFormat format) { return KvValueBits(format) <= 4; }
// Nothing for widths that are not listed above.
std::optional<KvFormat> MakeKvFormat(int key_bits, int value_bits);
// "k4v3".
std::string KvFormatName(KvFormat format);
std::optional<KvFormat> ParseKvFormat(std::string_view name);

// What a block holds besides keys and values. Entries of a block without an array have bias 0,
// count 1 and a position that the block does not know.
using KvBlockFlags = uint8_t;
inline constexpr KvBlockFlags kKvBias = 1;      // f16 [B]: natural logarithm, added to the logit
inline constexpr KvBlockFlags kKvPosition = 2;  // u32 base, u16 [B] distances from it
inline constexpr KvBlockFlags kKvRun = 4;       // u32 base alone: entry e is at base + e
inline constexpr KvBlockFlags kKvCount = 8;  // u8 [B]: tokens that an entry stands for, 255 at most
// Keys are stored without R(position) mean: needs narrow keys, and kKvPosition or kKvRun.
inline constexpr KvBlockFlags kKvCentred = 16;

// Dimensions that fix a block's bytes.
struct KvBlockShape {
  int32_t head_dim = 0;       // D; a multiple of 8
  int32_t block_tokens = 32;  // B; 32 or 64
};

// One block in a unit's list, as attention reads it.
struct KvBlockRef {
  uint32_t offset_64 = 0;  // byte offset in the arena / 64
  KvFormat format = KvFormat::kK16V16;
  KvBlockFlags flags = 0;
  uint16_t count = 0;  // entries held, including the ones that this step appends
};
static_assert(sizeof(KvBlockRef) == 8);

// One unit's logical list for one step: blocks in logical order, of which only the last may still
// be filling.
struct KvList {
  const KvBlockRef* blocks = nullptr;
  int32_t num_blocks = 0;
  int32_t num_entries = 0;  // sum of counts
};

// Where the pieces of a block begin, in bytes from its start. A piece that the block lacks has the
// offset of the next one. Keys and values, their upper planes and their scales each start at a
// multiple of 64.
struct KvBlockPieces {
  int64_t keys = 0;         // f16, or the lower plane of the codes
  int64_t key_upper = 0;    // 6 bits: the upper 2 bits
  int64_t key_scales = 0;   // f16 [B]
  int64_t values = 0;       // f16, or the lower plane of the codes
  int64_t value_upper = 0;  // 3 bits: the upper bit
  int64_t value_scales = 0;
  int64_t bias = 0;
  int64_t distances = 0;
  int64_t base = 0;
  int64_t counts = 0;
  int64_t bytes = 0;  // of the whole block, a multiple of 64
};
KvBlockPieces KvPieces(KvFormat format, KvBlockFlags flags, const KvBlockShape& shape);

// Bytes of one block, a multiple of 64.
int64_t KvBlockBytes(KvFormat format, const KvBlockShape& shape, KvBlockFlags flags = 0);
// Byte offset of the values inside a block; keys start at 0.
int64_t KvValuesOffset(KvFormat format, const KvBlockShape& shape);
// Position of an entry. REQUIRES: kKvPosition or kKvRun; `block` points to the block's first byte.
int64_t KvPositionOf(const std::byte* block, const KvBlockRef& ref, const KvBlockShape& shape,
                     int entry);

}  // namespace condense

#endif  // CONDENSE_KERNELS_KV_BLOCK_H_
