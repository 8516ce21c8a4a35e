#include "cache/kv_layout.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

constexpr int32_t kMaxLayers = 4096;
constexpr int32_t kMaxKvHeads = 4096;
constexpr int32_t kMaxHeadDim = 1024;
constexpr int64_t kMinSlabBytes = 64 << 10;
constexpr int64_t kMinSlabBlocks = 16;

absl::Status CheckRange(const char* name, int32_t value, int32_t limit) {
  if (value >= 1 && value <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("KV layout: %s is %d, must be from 1 to %d", name, value, limit));
}

}  // namespace

int64_t KvLayout::bytes_per_token_16bit() const {
  constexpr int64_t kKeyAndValueBytes = 2 * sizeof(uint16_t);
  return kKeyAndValueBytes * block.head_dim * num_units();
}

int64_t KvLayout::slab_bytes() const {
  return std::max(kMinSlabBytes, kMinSlabBlocks * KvBlockBytes(KvFormat::kK16V16, block));
}

absl::Status KvLayout::Validate() const {
  RETURN_IF_ERROR(CheckRange("num_layers", num_layers, kMaxLayers));
  RETURN_IF_ERROR(CheckRange("num_kv_heads", num_kv_heads, kMaxKvHeads));
  RETURN_IF_ERROR(CheckRange("head_dim", block.head_dim, kMaxHeadDim));
  if (block.head_dim % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("KV layout: head_dim is %d, must be a multiple of 8 up to %d",
                        block.head_dim, kMaxHeadDim));
  }
  if (block.block_tokens != 32 && block.block_tokens != 64) {
    return absl::InvalidArgumentError(
        absl::StrFormat("KV layout: block_tokens is %d, must be 32 or 64", block.block_tokens));
  }
  if (!layer_window.empty() && layer_window.size() != static_cast<size_t>(num_layers)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "KV layout: layer_window has %d entries, must have none or one for each of %d layers",
        layer_window.size(), num_layers));
  }
  for (size_t layer = 0; layer < layer_window.size(); ++layer) {
    if (layer_window[layer] >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("KV layout: layer_window of layer %d is %d, must be 0 or more", layer,
                        layer_window[layer]));
  }
  return absl::OkStatus();
}

}  // namespace condense
