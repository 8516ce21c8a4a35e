#ifndef CONDENSE_TESTS_SUPPORT_REFERENCE_KV_H_
#define CONDENSE_TESTS_SUPPORT_REFERENCE_KV_H_

// KV blocks as the oracle sees them: any format decoded entry by entry, in double, from the
// description in docs/kv_format.md.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kv_op_args.h"

namespace condense {

// x = R(position) x, or R(-position) x.
void ReferenceRotate(const PositionTable& positions, int64_t position, bool backwards,
                     std::vector<double>* x);
// Block-diagonal Hadamard transform by its definition.
std::vector<double> ReferenceHadamard(const std::vector<double>& x);

struct ReferenceEntry {
  std::vector<double> key;  // after RoPE
  std::vector<double> value;
  double bias = 0.0;
  int64_t position = -1;  // -1: the block does not say
  int count = 1;
};
// `mean` [D] and `positions` are read for centred blocks only.
ReferenceEntry ReadReferenceEntry(const std::byte* arena, const KvBlockRef& block,
                                  const KvBlockShape& shape, const float* mean,
                                  const PositionTable& positions, int entry);

// What a block stores of an entry's key and value, undecoded: codes (or the bytes of f16) and the
// bits of scales.
struct StoredEntry {
  std::vector<uint8_t> key, value;
  uint16_t key_scale = 0, value_scale = 0;  // 0 at 16 bits

  bool operator==(const StoredEntry&) const = default;
};
StoredEntry ReadStoredEntry(const std::byte* arena, const KvBlockRef& block,
                            const KvBlockShape& shape, int entry);

// The kv-read and kv-build ops.
void ReferenceKvRead(const KvReadArgs& args);
void ReferenceKvBuild(const KvBuildArgs& args);

}  // namespace condense

#endif  // CONDENSE_TESTS_SUPPORT_REFERENCE_KV_H_
