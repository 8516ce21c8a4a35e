#ifndef CONDENSE_CACHE_COMPACTION_MODEL_H_
#define CONDENSE_CACHE_COMPACTION_MODEL_H_

// What compaction has to know of the model and of where its KV cache lies.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/rope_table.h"
#include "kernels/kv_op_args.h"

namespace condense {

// Constant; device memory outlives the worker.
struct CompactionModel {
  std::byte* arena = nullptr;  // device
  KvBlockShape shape;
  int32_t num_kv_heads = 0;  // G
  int32_t group = 0;         // H/G
  float attention_scale = 0.0f;
  // By layer: [G, D] mean keys before RoPE (device), or null where none are known; the angles of
  // the layer's RoPE; the same angles for policies.
  std::vector<const float*> key_mean;
  std::vector<PositionTable> positions;
  std::vector<RopeFrequencies> frequencies;
};

}  // namespace condense

#endif  // CONDENSE_CACHE_COMPACTION_MODEL_H_
