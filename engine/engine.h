#ifndef CONDENSE_ENGINE_ENGINE_H_
#define CONDENSE_ENGINE_ENGINE_H_

// The engine: one thread that batches the steps of all requests over one model.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/chat_template.h"
#include "engine/config.h"
#include "engine/quality/guard_report.h"
#include "engine/quality/guardrail.h"
#include "engine/request.h"
#include "engine/token_stream.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/backend.h"

namespace condense {

class Metrics;

// What was loaded; constant for the engine's life.
struct ModelInfo {
  std::string name;
  std::string architecture;
  int64_t parameters = 0;
  int32_t vocab_size = 0;
  int32_t max_context = 0;  // prompt and output tokens of one request
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int64_t kv_bytes_per_token_16bit = 0;
  int64_t weight_bytes = 0;
  int64_t kv_memory_bytes = 0;
  int64_t max_request_tokens = 0;  // what an empty cache can hold, at most max_context
  BackendInfo backend;
};

// Units whose compaction came back, since the start, by what became of it.
struct SwapTotals {
  uint64_t accepted = 0;
  uint64_t refused = 0;  // validation found an error above its limit
  uint64_t useless = 0;  // it would have saved nothing
  uint64_t failed = 0;
  uint64_t dropped = 0;  // the sequence had ended, or its list had changed
};

// A snapshot, at most one step old.
struct EngineLoad {
  int32_t running = 0;
  int32_t queued = 0;
  int64_t queued_tokens = 0;
  int64_t kv_bytes_used = 0;
  int64_t kv_bytes_total = 0;
  int64_t kv_bytes_16bit = 0;  // of the same tokens in a 16-bit cache; 0: not known
  int64_t staging_bytes = 0;   // of blocks under construction
  int64_t slack_bytes = 0;     // held by pools, in no block that is used
  int64_t logical_tokens = 0;
  int32_t jobs_out = 0;  // compaction jobs posted and not yet collected
  SwapTotals swaps;
  std::string compaction_mode = "uncompressed";  // see CompressionControl::mode; not from a step
  std::string compaction_reason;  // of the guard's mode; empty where the guard is off
  uint64_t steps = 0;
  double tokens_per_second = 0;  // generated, over the last ten seconds
  uint64_t preemptions = 0;
  absl::Time last_step = absl::InfinitePast();  // end of the last step
  bool failing = false;                         // the last steps all failed: the device may be lost
  bool has_work = false;                        // something runs or waits: steps are expected
};

// Owns: backend, weights, cache, and the engine thread. Destruction stops the thread; live requests
// end CANCELLED. Threads: all public methods are thread-safe.
class Engine {
 public:
  // Loads the model and starts the thread. Errors name the file, the flag or the memory that was
  // asked for. `metrics` may be null and must outlive the engine. `backend`: given by tests, else
  // made from the config.
  static absl::StatusOr<std::unique_ptr<Engine>> Make(EngineConfig config, Metrics* metrics,
                                                      std::unique_ptr<Backend> backend = nullptr);
  ~Engine();

  // Queues a request. INVALID_ARGUMENT (field, value, limit) for one that is malformed;
  // RESOURCE_EXHAUSTED if the queue is full, or, saying so, if the request can never fit;
  // ALREADY_EXISTS for a live id; UNAVAILABLE while draining. The stream's first event is
  // kAccepted.
  absl::StatusOr<std::shared_ptr<TokenStream>> Submit(Request request);
  // Ends a live request with CANCELLED within one step. False if there is none of this id.
  bool Abort(const std::string& request_id);

  // The compression of requests that name none, from the next Submit on; running and queued ones
  // keep theirs. INVALID_ARGUMENT (field, value, limits), and nothing changes.
  absl::Status SetCompression(Compression compression);
  Compression GetCompression() const;
  // While paused nothing is compacted, whatever requests ask for; what is compacted stays so.
  void PauseCompaction(bool paused);
  bool compaction_paused() const;
  // The guard keeps this mode whatever is measured; nothing: the guardrails decide again, beginning
  // with the mode that is. FAILED_PRECONDITION where the guard is off.
  absl::Status ForceMode(std::optional<GuardrailMode> mode);
  // Of the last evaluation window; all without a reading where the guard is off.
  GuardReports guard_reports() const;

  // New requests are refused from now on; running and queued ones go on.
  void Drain();
  bool draining() const;
  // True when no request runs or waits.
  bool idle() const;

  EngineLoad load() const;
  const ModelInfo& model_info() const;
  const Tokenizer& tokenizer() const;
  const ChatTemplate& chat_template() const;
  const EngineConfig& config() const;

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_ENGINE_H_
