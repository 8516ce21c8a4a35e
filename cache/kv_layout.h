#ifndef CONDENSE_CACHE_KV_LAYOUT_H_
#define CONDENSE_CACHE_KV_LAYOUT_H_

// What a model's KV cache is made of: layers, KV heads, head size, windows. Byte arithmetic,
// nothing else.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/kv_block.h"

namespace condense {

struct KvLayout {
  int32_t num_layers = 0;    // L
  int32_t num_kv_heads = 0;  // G
  KvBlockShape block;        // D and B
  // Sliding window in tokens of each layer, 0 for full attention; empty means 0 everywhere.
  std::vector<int32_t> layer_window;

  int32_t num_units() const { return num_layers * num_kv_heads; }
  int32_t unit(int32_t layer, int32_t kv_head) const { return layer * num_kv_heads + kv_head; }
  int32_t window(int32_t layer) const { return layer_window.empty() ? 0 : layer_window[layer]; }
  int32_t window_of_unit(int32_t unit) const { return window(unit / num_kv_heads); }
  // Bytes of one token over all units in 16 bits: the denominator of every ratio.
  int64_t bytes_per_token_16bit() const;
  // Bytes of the piece that a head pool takes from the arena: 64 KiB, or 16 blocks of the widest
  // format if that is more; a multiple of 64.
  int64_t slab_bytes() const;
  // INVALID_ARGUMENT naming the dimension, its value and its limits.
  absl::Status Validate() const;
};

}  // namespace condense

#endif  // CONDENSE_CACHE_KV_LAYOUT_H_
