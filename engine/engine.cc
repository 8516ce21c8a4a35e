#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "cache/kv_cache.h"
#include "engine/compaction_guard.h"
#include "engine/compaction_line.h"
#include "engine/compression_control.h"
#include "engine/engine_loop.h"
#include "engine/gguf.h"
#include "engine/model.h"
#include "engine/request_queue.h"
#include "kernels/base/status_macros.h"
#include "metrics/metrics.h"

namespace condense {

// Of the arena, for backs under construction, where no figure is given.
constexpr int64_t kStagingShare = 16;

// Members are destroyed in reverse: thread, loop, then what the loop works with.
class Engine::Impl {
 public:
  explicit Impl(EngineConfig config_in)
      : config(std::move(config_in)),
        compression(config.compression),
        queue(config.max_queued_requests, config.max_queued_tokens, config.stream_buffer_tokens) {}
  ~Impl() {
    if (!thread.joinable()) return;
    queue.Close();
    loop->Stop();
    thread.join();
  }

  bool compacts() const { return config.compaction.enabled || config.compression.active(); }
  absl::Status Load(std::unique_ptr<Backend> given_backend);
  absl::Status MakeCache();
  void FillInfo(const GgufFile& file);
  void Start(Metrics* metrics_in);
  absl::Status CheckCompression(const Compression& compression) const;
  absl::Status Check(const Request& request) const;

  const EngineConfig config;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<const Tokenizer> tokenizer;
  ChatTemplate chat_template;
  std::unique_ptr<Model> model;
  std::unique_ptr<KvCache> cache;
  ModelInfo info;
  CompressionControl compression;
  std::unique_ptr<CompactionLine> compaction;  // null: not enabled
  std::unique_ptr<CompactionGuard> guard;      // null: off
  std::unique_ptr<Prober> prober;              // null without a guard
  RequestQueue queue;
  Metrics* metrics = nullptr;
  std::unique_ptr<EngineLoop> loop;
  std::thread thread;
};

absl::Status Engine::Impl::Load(std::unique_ptr<Backend> given_backend) {
  RETURN_IF_ERROR(config.Validate());
  backend = std::move(given_backend);
  if (backend == nullptr) {
    ASSIGN_OR_RETURN(backend, MakeBackend(config.backend));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<const GgufFile> file, GgufFile::Open(config.model_path));
  ASSIGN_OR_RETURN(tokenizer, Tokenizer::Make(*file));
  ASSIGN_OR_RETURN(const std::string template_text, file->StringOr("tokenizer.chat_template", ""));
  const std::optional<TokenId> eos = tokenizer->eos();
  chat_template = ChatTemplate::Recognise(
      template_text, eos.has_value() ? tokenizer->TokenBytes(*eos, /*special=*/true) : "</s>");
  ASSIGN_OR_RETURN(model, Model::Load(backend.get(), *file, config.step_tokens));
  RETURN_IF_ERROR(MakeCache());
  FillInfo(*file);
  if (!compacts()) return absl::OkStatus();
  ASSIGN_OR_RETURN(compaction,
                   CompactionLine::Make(backend.get(), model.get(), cache.get(), *tokenizer,
                                        config.compaction, config.step_tokens, info.max_context));
  return absl::OkStatus();
}

absl::Status Engine::Impl::MakeCache() {
  const int64_t free_bytes = backend->Info().memory_bytes - model->weights().bytes;
  const int64_t half_of_free = std::min(std::max<int64_t>(free_bytes, 0) / 2, kMaxKvArenaBytes);
  const int64_t arena_bytes = config.kv_memory_bytes > 0 ? config.kv_memory_bytes : half_of_free;
  const CompactionConfig& c = config.compaction;
  KvCacheOptions options{.arena_bytes = arena_bytes,
                         .step_tokens = config.step_tokens,
                         .pool = {.preallocate = c.pool_preallocate,
                                  .grow_at = c.pool_grow_at,
                                  .grow_by = c.pool_grow_by,
                                  .cap_bytes = c.pool_cap_bytes},
                         .poison_freed = config.poison_freed_kv};
  if (compacts()) {
    options.staging_bytes =
        c.staging_memory_bytes > 0 ? c.staging_memory_bytes : arena_bytes / kStagingShare;
  }
  auto made = KvCache::Make(backend.get(), model->MakeKvLayout(config.block_tokens), options);
  if (!made.ok()) {
    return absl::Status(made.status().code(),
                        absl::StrFormat("kv_memory: %s", std::string(made.status().message())));
  }
  cache = *std::move(made);
  return absl::OkStatus();
}

void Engine::Impl::FillInfo(const GgufFile& file) {
  const ModelConfig& c = model->config();
  info.name = config.model_name.empty() ? std::filesystem::path(config.model_path).stem().string()
                                        : config.model_name;
  info.architecture = c.architecture;
  for (const GgufTensor& tensor : file.tensors()) {
    int64_t elements = 1;
    for (const int64_t dim : tensor.dims) elements *= dim;
    info.parameters += elements;
  }
  info.vocab_size = c.vocab;
  info.max_context =
      config.max_context > 0 ? std::min(config.max_context, c.context_length) : c.context_length;
  info.num_layers = c.num_layers;
  info.num_heads = c.num_heads;
  info.num_kv_heads = c.num_kv_heads;
  info.head_dim = c.head_dim;
  info.kv_bytes_per_token_16bit = cache->layout().bytes_per_token_16bit();
  info.weight_bytes = model->weights().bytes;
  info.kv_memory_bytes = cache->Stats().arena_bytes;
  info.max_request_tokens = std::min<int64_t>(info.max_context, cache->max_sequence_tokens());
  info.backend = backend->Info();
}

void Engine::Impl::Start(Metrics* metrics_in) {
  metrics = metrics_in;
  if (metrics != nullptr) {
    metrics->SetModelInfo(info.architecture, info.backend.name, info.backend.device);
    metrics->SetKvConfig(config.block_tokens, info.kv_memory_bytes);
  }
  if (config.guard) {
    guard = std::make_unique<CompactionGuard>(config.guard_limits, config.compaction.swap_every,
                                              &compression, metrics);
    prober = std::make_unique<Prober>(
        config.probes, Prober::Parts{.guard = guard.get(),
                                     .control = &compression,
                                     .tokenizer = tokenizer.get(),
                                     .metrics = metrics,
                                     .max_tokens = std::min<int64_t>(
                                         info.max_context, cache->max_sequence_tokens() / 2)});
  }
  loop = std::make_unique<EngineLoop>(
      config,
      EngineLoop::Parts{.backend = backend.get(),
                        .model = model.get(),
                        .cache = cache.get(),
                        .tokenizer = tokenizer.get(),
                        .queue = &queue,
                        .metrics = metrics,
                        .compression = &compression,
                        .compactor = compaction == nullptr ? nullptr : compaction->compactor(),
                        .pace = compaction == nullptr ? nullptr : compaction->pace(),
                        .guard = guard.get(),
                        .prober = prober.get(),
                        .max_request_tokens = info.max_request_tokens});
  thread = std::thread([this] { loop->Run(); });
}

absl::Status Engine::Impl::CheckCompression(const Compression& compression) const {
  RETURN_IF_ERROR(ValidateCompression(compression));
  if (!compression.active() || compacts()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "compression.preset is \"%s\", but this engine was started without compaction",
      compression.preset));
}

absl::Status Engine::Impl::Check(const Request& request) const {
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  if (request.id.empty()) return absl::InvalidArgumentError("request_id is empty");
  if (prompt == 0)
    return absl::InvalidArgumentError("the prompt is empty; it must have at least 1 token");
  for (int64_t i = 0; i < prompt; ++i) {
    if (request.prompt[i] >= 0 && request.prompt[i] < info.vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrFormat("token_ids[%d] is %d; must be in 0..%d", i,
                                                      request.prompt[i], info.vocab_size - 1));
  }
  for (const auto& [token, bias] : request.sampling.logit_bias) {
    if (token >= 0 && token < info.vocab_size && std::isfinite(bias)) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "sampling.logit_bias[%d] is %g; the token must be in 0..%d and the bias finite", token,
        bias, info.vocab_size - 1));
  }
  const int32_t most_logprobs = std::min(kMaxTopLogprobs, info.vocab_size);
  if (request.num_logprobs < -1 || request.num_logprobs > most_logprobs) {
    return absl::InvalidArgumentError(
        absl::StrFormat("logprobs is %d; must be in 0..%d", request.num_logprobs, most_logprobs));
  }
  if (request.stop.max_tokens < 0 || request.stop.min_tokens < 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "stopping.max_tokens is %d and stopping.min_tokens is %d; neither may be negative",
        request.stop.max_tokens, request.stop.min_tokens));
  }
  for (const std::string& stop : request.stop.stop_strings) {
    if (stop.empty()) return absl::InvalidArgumentError("stopping.stop holds an empty string");
  }
  if (request.compression.has_value()) RETURN_IF_ERROR(CheckCompression(*request.compression));
  const int64_t wanted = std::max<int64_t>(request.stop.max_tokens, request.score ? 0 : 1);
  if (prompt + wanted > info.max_context) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the prompt has %d tokens and stopping.max_tokens is %d; together they "
                        "must be at most %d, the "
                        "context of the model",
                        prompt, request.stop.max_tokens, info.max_context));
  }
  if (prompt + wanted > info.max_request_tokens) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the request can never fit: it needs KV memory for %d tokens (%d of the prompt and %d "
        "new), and "
        "the whole KV memory of %d bytes holds %d",
        prompt + wanted, prompt, wanted, info.kv_memory_bytes, info.max_request_tokens));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Make(EngineConfig config, Metrics* metrics,
                                                     std::unique_ptr<Backend> backend) {
  auto impl = std::make_unique<Impl>(std::move(config));
  RETURN_IF_ERROR(impl->Load(std::move(backend)));
  impl->Start(metrics);
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

absl::StatusOr<std::shared_ptr<TokenStream>> Engine::Submit(Request request) {
  RETURN_IF_ERROR(impl_->Check(request));
  if (!request.compression.has_value()) request.compression = impl_->compression.Default();
  auto stream = impl_->queue.TryPush(std::move(request), absl::Now());
  if (stream.ok() && impl_->metrics != nullptr) impl_->metrics->requests_accepted.Increment();
  return stream;
}

bool Engine::Abort(const std::string& request_id) { return impl_->queue.Cancel(request_id); }
void Engine::Drain() { impl_->queue.Close(); }
bool Engine::draining() const { return impl_->queue.closed(); }
bool Engine::idle() const { return impl_->queue.live_requests() == 0; }
EngineLoad Engine::load() const {
  EngineLoad load = impl_->loop->load();
  load.compaction_mode = impl_->compression.mode();
  load.compaction_reason = impl_->compression.reason();
  return load;
}
absl::Status Engine::SetCompression(Compression compression) {
  RETURN_IF_ERROR(impl_->CheckCompression(compression));
  impl_->compression.SetDefault(std::move(compression));
  return absl::OkStatus();
}
Compression Engine::GetCompression() const { return impl_->compression.Default(); }
void Engine::PauseCompaction(bool paused) { impl_->compression.Pause(paused); }
bool Engine::compaction_paused() const { return impl_->compression.paused(); }
absl::Status Engine::ForceMode(std::optional<GuardrailMode> mode) {
  if (!impl_->config.guard) {
    return absl::FailedPreconditionError("mode is set, but this engine was started without guard");
  }
  impl_->compression.Force(mode);
  impl_->queue.Wake();  // an idle engine follows too
  return absl::OkStatus();
}
GuardReports Engine::guard_reports() const { return impl_->compression.reports(); }
const ModelInfo& Engine::model_info() const { return impl_->info; }
const Tokenizer& Engine::tokenizer() const { return *impl_->tokenizer; }
const ChatTemplate& Engine::chat_template() const { return impl_->chat_template; }
const EngineConfig& Engine::config() const { return impl_->config; }

}  // namespace condense
