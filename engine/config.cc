#include "engine/config.h"

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

absl::Status InRange(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %d; must be in %d..%d", field, value, low, high));
}

}  // namespace

absl::Status EngineConfig::Validate() const {
  if (model_path.empty())
    return absl::InvalidArgumentError("model is empty; give the path of a GGUF file");
  RETURN_IF_ERROR(InRange("kv_memory", kv_memory_bytes, 0, int64_t{1} << 46));
  if (block_tokens != 32 && block_tokens != 64) {
    return absl::InvalidArgumentError(
        absl::StrFormat("block_tokens is %d; must be 32 or 64", block_tokens));
  }
  RETURN_IF_ERROR(InRange("max_context", max_context, 0, 1 << 24));
  RETURN_IF_ERROR(InRange("max_sequences", max_sequences, 1, 4096));
  RETURN_IF_ERROR(InRange("step_tokens", step_tokens, 1, 1 << 16));
  RETURN_IF_ERROR(InRange("decode_reserve_tokens", decode_reserve_tokens, 0, 1 << 16));
  RETURN_IF_ERROR(InRange("max_queued_requests", max_queued_requests, 1, 1 << 20));
  RETURN_IF_ERROR(InRange("max_queued_tokens", max_queued_tokens, 1, int64_t{1} << 40));
  RETURN_IF_ERROR(InRange("stream_buffer_tokens", stream_buffer_tokens, 1, 1 << 24));
  RETURN_IF_ERROR(InRange("threads", backend.num_threads, 0, 1024));
  return InRange("max_running_per_tenant", max_running_per_tenant, 0, 4096);
}

}  // namespace condense
