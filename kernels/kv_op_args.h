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

// A block to build from. `first_position` is the position of its first entry, the others ascending
// by one; blocks that hold positions (kKvPosition, kKvRun) do not need it.
struct KvBuildSource {
  KvBlockRef block;
  int32_t first_position = 0;
};
// What an entry of a source adds to a new entry. `source` counts over all sources' entries in
// order.
struct KvBuildMember {
  int32_t source = 0;
  float key_weight = 0.0f;
  float value_weight = 0.0f;
};
struct KvBuildEntry {
  int32_t first_member = 0;  // index into members
  int32_t num_members = 0;
  float position = 0.0f;  // rounded to a whole one, in [0, num_positions)
  float bias = 0.0f;      // as attention adds it, whatever the members' biases were
  int32_t count = 1;      // tokens it stands for; more than 255 are stored as 255
};

// Write the entries of one unit into new blocks:
//   key = sum of key_weight * R(position - position of the member) key of the member,
//   value = sum of value_weight * value of the member,
// over keys after RoPE, as exact as the sources hold them; then, as the block's format and flags
// say: subtract R(position) mean, transform, quantize, pack. Weights are taken as they are. An
// entry of which only one member has a key weight, 1, at the same position in a source that stores
// keys alike, gets that key's bytes; values likewise. Sources and destinations are blocks of one
// arena and do not overlap.
struct KvBuildArgs {
  std::byte* arena = nullptr;  // device
  KvBlockShape shape;
  const KvBuildSource* sources = nullptr;  // host
  int32_t num_sources = 0;
  const KvBuildMember* members = nullptr;  // host
  const KvBuildEntry* entries = nullptr;   // host, in the order of the new blocks' slots
  int32_t num_entries = 0;
  const KvBlockRef* blocks = nullptr;  // host, new; the sum of their counts is num_entries
  int32_t num_blocks = 0;
  const float* key_mean = nullptr;  // device [D], of this unit; null when no block is centred
  PositionTable positions;
};

// What entries of one unit hold, as plain numbers on the host: for plans. Null outputs are left
// out.
struct KvReadArgs {
  const std::byte* arena = nullptr;  // device
  KvBlockShape shape;
  const KvBuildSource* sources = nullptr;  // host; n entries in all
  int32_t num_sources = 0;
  const float* key_mean = nullptr;  // device [D], of this unit; null when no block is centred
  PositionTable positions;
  float* keys = nullptr;             // host [n, D], after RoPE, as exact as stored
  float* values = nullptr;           // host [n, D]
  int32_t* positions_out = nullptr;  // host [n]
  float* biases = nullptr;           // host [n]
  int32_t* counts = nullptr;         // host [n]
};

// What queries find in one unit's list: attention of every query over the whole list, for judging a
// list against another. Null outputs are left out; without `out` no value is read.
struct KvEvaluateArgs {
  const float* q = nullptr;          // host [N, H/G, D], after RoPE
  const std::byte* arena = nullptr;  // device
  KvBlockShape shape;
  int32_t num_queries = 0;  // N
  int32_t group = 0;        // H/G
  KvList list;              // host
  float scale = 0.0f;
  const float* key_mean = nullptr;  // device [D], of this unit; null when no block is centred
  PositionTable positions;
  float* out = nullptr;          // host [N, H/G, D]
  float* log_sum_exp = nullptr;  // host [N, H/G]
  float* mass = nullptr;         // host [N, H/G, num_entries]: softmax probabilities
};

}  // namespace condense

#endif  // CONDENSE_KERNELS_KV_OP_ARGS_H_
