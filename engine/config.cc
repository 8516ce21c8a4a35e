#include "engine/config.h"

#include "absl/strings/str_format.h"
#include "cache/policies/registry.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

absl::Status InRange(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %d; must be in %d..%d", field, value, low, high));
}

// False for NaN, which is in no range.
absl::Status ShareInRange(const char* field, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %g; must be in %g..%g", field, value, low, high));
}

// Below this a step of the guards would round to nothing.
constexpr double kLeastShare = 0.001;
constexpr absl::Duration kLeastStepTime = absl::Microseconds(100), kMostStepTime = absl::Seconds(1);
constexpr int64_t kMostBytes = int64_t{1} << 46;

}  // namespace

absl::Status CompactionConfig::Validate() const {
  RETURN_IF_ERROR(InRange("swap_every", swap_every, 1, 1024));
  if (step_time < kLeastStepTime || step_time > kMostStepTime)
    return absl::InvalidArgumentError(absl::StrFormat(
        "compaction_step_time is %s; must be in %s..%s", absl::FormatDuration(step_time),
        absl::FormatDuration(kLeastStepTime), absl::FormatDuration(kMostStepTime)));
  RETURN_IF_ERROR(ShareInRange("compaction_step_share", step_share, 0, 1));
  RETURN_IF_ERROR(InRange("cluster_window", cluster_window, 2, 1 << 16));
  RETURN_IF_ERROR(InRange("staging_memory", staging_memory_bytes, 0, kMostBytes));
  RETURN_IF_ERROR(ShareInRange("pool_preallocate", pool_preallocate, kLeastShare, 1));
  RETURN_IF_ERROR(ShareInRange("pool_grow_at", pool_grow_at, kLeastShare, 1));
  RETURN_IF_ERROR(ShareInRange("pool_grow_by", pool_grow_by, kLeastShare, 1));
  RETURN_IF_ERROR(InRange("pool_cap_bytes", pool_cap_bytes, 64 << 10, kMostBytes));
  // Each from the one before: marking, then hurrying, then force.
  RETURN_IF_ERROR(ShareInRange("mark_at", mark_at, 0, 1));
  RETURN_IF_ERROR(ShareInRange("soft_limit", soft_limit, mark_at, 1));
  RETURN_IF_ERROR(ShareInRange("hard_limit", hard_limit, soft_limit, 1));
  RETURN_IF_ERROR(InRange("grace_tokens", grace_tokens, 0, 1 << 16));
  return ShareInRange("drop_share", drop_share, kLeastShare, 1);
}

absl::Status ValidateCompression(const Compression& compression) {
  RETURN_IF_ERROR(MakePolicy(compression.policy).status());
  RETURN_IF_ERROR(ShareInRange("ratio", compression.ratio, 1, kMaxRatio));
  RETURN_IF_ERROR(InRange("min_tokens", compression.min_tokens, 0, 1 << 24));
  RETURN_IF_ERROR(InRange("cluster_window", compression.cluster_window, 2, 1 << 16));
  RETURN_IF_ERROR(InRange("max_members", compression.max_members, 2, 255));
  RETURN_IF_ERROR(ShareInRange("cosine", compression.cosine, 0, 1));
  RETURN_IF_ERROR(ShareInRange("max_output_error", compression.max_output_error, 0, 1e6));
  return ShareInRange("max_log_mass_error", compression.max_log_mass_error, 0, 1e6);
}

std::vector<std::string> PolicyNames() {
  std::vector<std::string> names;
  for (const PolicyInfo& policy : RegisteredPolicies()) names.emplace_back(policy.name);
  return names;
}

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
  RETURN_IF_ERROR(InRange("max_running_per_tenant", max_running_per_tenant, 0, 4096));
  RETURN_IF_ERROR(ValidateCompression(compression));
  RETURN_IF_ERROR(compaction.Validate());
  const absl::Status limits = condense::Validate(guard_limits);
  if (!limits.ok()) {
    return absl::Status(limits.code(), absl::StrFormat("guard_%s", std::string(limits.message())));
  }
  RETURN_IF_ERROR(probes.Validate());
  if (guard && !compaction.enabled && !compression.active()) {
    return absl::InvalidArgumentError("guard is true and compaction is false; both must be true");
  }
  if (kv_memory_bytes == 0) return absl::OkStatus();
  return InRange("staging_memory", compaction.staging_memory_bytes, 0, kv_memory_bytes / 2);
}

}  // namespace condense
