#ifndef CONDENSE_ENGINE_CONFIG_H_
#define CONDENSE_ENGINE_CONFIG_H_

// What the engine is told at start: the flags of `condensed` in typed form.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache/compression.h"
#include "engine/probe/probe_options.h"
#include "engine/quality/guardrail_limits.h"
#include "kernels/backend.h"

namespace condense {

// How compaction works, whatever a request asks for. Shares are of 1.
struct CompactionConfig {
  // Worker, staging reserve and mean keys exist. Without them requests that ask for compaction are
  // refused. A compression that is active by default implies it.
  bool enabled = false;
  int32_t swap_every = 8;  // decode steps of a cycle
  // Of the worker, where the backend's threads take every core: what it may take of a step's time,
  // the larger of the two, beside what compaction saves.
  absl::Duration step_time = absl::Microseconds(1500);
  double step_share = 0.1;           // 1: no limit
  int32_t cluster_window = 128;      // tokens; of the compressions that the server makes of presets
  int64_t staging_memory_bytes = 0;  // for blocks under construction; 0: 1/16 of the arena
  // The memory of a head pool: taken at the start (share of its estimated maximum), when it grows
  // (share in use), by how much (share of the first size), and the most it may ever hold.
  double pool_preallocate = 0.6;
  double pool_grow_at = 0.8;
  double pool_grow_by = 0.2;
  int64_t pool_cap_bytes = int64_t{2} << 30;
  // Fill of the arena: from where candidates are marked, compaction is hurried, and it is forced.
  double mark_at = 0.4;
  double soft_limit = 0.7;
  double hard_limit = 0.9;
  int32_t grace_tokens = 16;  // the newest tokens, not yet ranked
  double drop_share = 0.1;  // of the candidates, that policy `attention` drops in a cycle at first

  // INVALID_ARGUMENT naming the field, its value and its limits.
  absl::Status Validate() const;
};

// The same for a compression that MakeCompression did not make.
absl::Status ValidateCompression(const Compression& compression);
// What Compression::policy may be.
std::vector<std::string> PolicyNames();

struct EngineConfig {
  std::string model_path;
  std::string model_name;  // how clients name it; empty: the file's own name
  BackendOptions backend;

  int64_t kv_memory_bytes = 0;  // 0: half of the memory that the weights leave
  int32_t block_tokens = 32;    // 32 or 64
  int32_t max_context = 0;      // prompt and output of one request; 0: as the model was trained
  int32_t max_sequences = 64;   // running at once; at most half of step_tokens takes effect
  int32_t step_tokens = 512;    // token budget of one step
  int32_t decode_reserve_tokens =
      32;  // room kept free per running request when a new one is admitted

  int32_t max_queued_requests = 1024;
  int64_t max_queued_tokens = 1 << 20;
  int32_t stream_buffer_tokens =
      4096;                            // undelivered tokens before a slow reader's request is ended
  int32_t max_running_per_tenant = 0;  // 0: no limit

  Compression compression;  // of requests that name none; off
  CompactionConfig compaction;
  // What compaction costs decides what it may do; needs compaction.
  bool guard = false;
  GuardrailLimits guard_limits;
  ProbeOptions probes;  // of the guard

  bool poison_freed_kv = false;  // for tests: KvCacheOptions::poison_freed

  // Called by the engine thread once after a step that published events: wake the readers. Must not
  // block.
  std::function<void()> on_published;

  // INVALID_ARGUMENT naming the field, its value and its limits.
  absl::Status Validate() const;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_CONFIG_H_
