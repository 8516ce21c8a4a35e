#ifndef CONDENSE_KERNELS_KV_OP_ARGS_H_
#define CONDENSE_KERNELS_KV_OP_ARGS_H_

// The PODs of the ops that read or write the KV cache; included by op_args.h, whose letters and
// words hold here too.

#include <cstddef>
#include <cstdint>

#include "kernels/kv_block.h"

namespace condense {

enum class RopePairing : uint8_t { kAdjacent, kHalfSplit };  // (2i, 2i+1) or (i, i + D/2)

// The rows of one sequence in a step, at one layer. Its newest `num_tokens` entries, the last of
// every list, belong to its rows in order: row i of the sequence sees the list without the last
// (num_tokens - 1 - i) entries.
struct KvSequenceArgs {
  int32_t first_row = 0;          // in [0, T)
  int32_t num_tokens = 0;         // rows of this sequence
  const KvList* lists = nullptr;  // host [G]; blocks of a list: host
};

// Write the newest entries of every list: f16 into the open block.
struct KvAppendArgs {
  const float* k = nullptr;    // device [T, G, D], after RoPE
  const float* v = nullptr;    // device [T, G, D]
  std::byte* arena = nullptr;  // device
  KvBlockShape shape;
  int32_t num_kv_heads = 0;                   // G
  int32_t num_sequences = 0;                  // S
  const KvSequenceArgs* sequences = nullptr;  // host [S]
};

// The angles of the model's RoPE at every whole position, scaling included.
struct PositionTable {
  const float* cos = nullptr;  // device [num_positions, D/2]
  const float* sin = nullptr;  // device [num_positions, D/2]
  int32_t num_positions = 0;
  RopePairing pairing = RopePairing::kAdjacent;
};

// out = softmax(scale * (q K^T + q M^T) + bias) V over each row's visible entries, in any mix of
// formats; M is R(position) mean for entries of centred blocks and zero for others.
// Cost: one pass over the keys and values of each list per group of H/G query heads.
// The result of a row does not depend on the other rows, on how a prompt was cut into chunks, or on
// the number of threads (bit for bit): lists are cut into parts of kAttentionPart entries, and
// parts are merged in order.
inline constexpr int kAttentionPart = 512;
struct AttentionArgs {
  const float* q = nullptr;          // device [T, H, D], after RoPE
  const std::byte* arena = nullptr;  // device
  KvBlockShape shape;
  int32_t num_heads = 0;                      // H, a multiple of G
  int32_t num_kv_heads = 0;                   // G
  int32_t num_sequences = 0;                  // S
  const KvSequenceArgs* sequences = nullptr;  // host [S]
  float scale = 0.0f;
  // For lists with centred blocks, else null: the mean key of each head before RoPE that was
  // subtracted when the blocks were built, and the positions' angles.
  const float* key_mean = nullptr;  // device [G, D]
  PositionTable positions;
  int32_t window = 0;            // a row sees its last `window` entries only; 0: all
  float* out = nullptr;          // device [T, H, D]
  float* log_sum_exp = nullptr;  // device [T, H] or null: ln of the softmax denominator
  // Evidence, or null: for each (sequence, KV head) and each entry of the list, the maximum over
  // the sequence's rows and the group's query heads of the softmax probability. Entries of (s, g)
  // start at evidence_offset[s * G + g].
  float* evidence = nullptr;                 // device
  const int64_t* evidence_offset = nullptr;  // host [S * G]
};

}  // namespace condense

#endif  // CONDENSE_KERNELS_KV_OP_ARGS_H_
