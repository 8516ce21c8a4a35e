#ifndef CONDENSE_ENGINE_CONFIG_H_
#define CONDENSE_ENGINE_CONFIG_H_

// What the engine is told at start: the flags of `condensed` in typed form.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/backend.h"

namespace condense {

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

  // Called by the engine thread once after a step that published events: wake the readers. Must not
  // block.
  std::function<void()> on_published;

  // INVALID_ARGUMENT naming the field, its value and its limits.
  absl::Status Validate() const;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_CONFIG_H_
