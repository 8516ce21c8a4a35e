#ifndef CONDENSE_KERNELS_KV_BLOCK_H_
#define CONDENSE_KERNELS_KV_BLOCK_H_

// The byte layout of one KV block, shared by the cache and every backend.
//
// A block holds up to B (32 or 64) entries of one unit (layer, KV head), physically contiguous, in
// one format. Format k16v16: keys f16 [D, B] (dimension-major: one vector load covers neighbouring
// entries, so a query needs no horizontal sum and a CUDA lane owns an entry), then values f16 [B,
// D]. Narrower formats and side arrays are added here, nowhere else.

#include <cstdint>

namespace condense {

enum class KvFormat : uint8_t { kK16V16 = 0 };

// Dimensions that fix a block's bytes.
struct KvBlockShape {
  int32_t head_dim = 0;       // D; a multiple of 8
  int32_t block_tokens = 32;  // B; 32 or 64
};

// One block in a unit's list, as attention reads it.
struct KvBlockRef {
  uint32_t offset_64 = 0;  // byte offset in the arena / 64
  KvFormat format = KvFormat::kK16V16;
  uint8_t flags = 0;   // side arrays present; none yet
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

// Bytes of one block, a multiple of 64.
int64_t KvBlockBytes(KvFormat format, const KvBlockShape& shape);
// Byte offset of the values inside a block; keys start at 0.
int64_t KvValuesOffset(KvFormat format, const KvBlockShape& shape);

}  // namespace condense

#endif  // CONDENSE_KERNELS_KV_BLOCK_H_
