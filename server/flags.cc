#include "server/flags.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "server/byte_size.h"
#include "server/convert_compression.h"
#include "server/guard_flags.h"

using condense::ByteSize;

// The model and where it runs.
ABSL_FLAG(std::string, model, "", "The model: a GGUF file. Required.");
ABSL_FLAG(std::string, model_name, "", "How clients name the model. Empty: the file's own name.");
ABSL_FLAG(std::string, backend, "auto", "What computes: auto, cpu or cuda.");
ABSL_FLAG(int32_t, threads, 0, "CPU threads. 0: one per core.");
ABSL_FLAG(std::string, cpu_isa, "auto",
          "The most that CPU kernels may use: auto, scalar, avx2 or avx512vnni.");

// The engine.
ABSL_FLAG(ByteSize, kv_memory, {},
          "Memory for keys and values, as in 4GiB. 0: half of what the "
          "backend has.");
ABSL_FLAG(int32_t, block_tokens, 32, "Entries of a block of the cache: 32 or 64.");
ABSL_FLAG(int32_t, max_context, 0,
          "Prompt and output tokens of one request. 0: as the model was "
          "trained.");
ABSL_FLAG(int32_t, max_sequences, 64, "Requests that run at once.");
ABSL_FLAG(int32_t, step_tokens, 512,
          "Tokens of one step: the longest piece of a prompt that the "
          "others wait for.");
ABSL_FLAG(int32_t, decode_reserve_tokens, 32,
          "Room kept free for each running request when "
          "another one is admitted.");
ABSL_FLAG(int32_t, max_queued_requests, 1024, "Waiting requests; more are refused.");
ABSL_FLAG(int64_t, max_queued_tokens, 1 << 20, "Prompt tokens of all waiting requests.");
ABSL_FLAG(int32_t, max_running_per_tenant, 0, "Running requests of one tenant. 0: no limit.");
ABSL_FLAG(int32_t, stream_buffer_tokens, 4096,
          "Tokens kept for a slow reader before its request is "
          "ended.");

// The compacting cache.
ABSL_FLAG(std::string, preset, condense::kDefaultPreset,
          "How far the cache of requests that do not say is compacted: off, lossless, light, "
          "balanced or aggressive.");
ABSL_FLAG(std::string, policy, "",
          "How entries are merged: none, balanced, similarity, similarity_average, attention, lru, "
          "window or random. Empty: as the preset says.");
ABSL_FLAG(double, ratio, 0, "Bytes of a 16-bit cache by bytes to hold. 0: as the preset says.");
ABSL_FLAG(bool, compaction, true,
          "Reserve what compaction needs, so that requests may ask for it. false: nothing is ever "
          "compacted; takes --preset=off.");
ABSL_FLAG(int32_t, swap_every, condense::CompactionConfig().swap_every,
          "Decode steps from one swap of compacted blocks to the next.");
ABSL_FLAG(absl::Duration, compaction_step_time, condense::CompactionConfig().step_time,
          "What compaction may take of every step where --threads takes every core.");
ABSL_FLAG(
    double, compaction_step_share, condense::CompactionConfig().step_share,
    "Share of a step's time that it may take, where that is more than --compaction_step_time. "
    "1: no limit.");
ABSL_FLAG(int32_t, cluster_window, condense::CompactionConfig().cluster_window,
          "Tokens inside which entries are merged.");
ABSL_FLAG(ByteSize, staging_memory, {condense::CompactionConfig().staging_memory_bytes},
          "Memory, of --kv_memory, for blocks that compaction is building. 0: a sixteenth.");
ABSL_FLAG(double, pool_preallocate, condense::CompactionConfig().pool_preallocate,
          "Share of its estimated maximum with which the account of a head's pool begins.");
ABSL_FLAG(double, pool_grow_at, condense::CompactionConfig().pool_grow_at,
          "Share in use from which a pool grows.");
ABSL_FLAG(double, pool_grow_by, condense::CompactionConfig().pool_grow_by,
          "What a pool grows by, as a share of its first size.");
ABSL_FLAG(ByteSize, pool_cap_bytes, {condense::CompactionConfig().pool_cap_bytes},
          "The most that a pool holds.");
ABSL_FLAG(double, mark_at, condense::CompactionConfig().mark_at,
          "Fill of the cache from which candidates for compaction are marked.");
ABSL_FLAG(double, soft_limit, condense::CompactionConfig().soft_limit,
          "Fill from which compaction is hurried.");
ABSL_FLAG(double, hard_limit, condense::CompactionConfig().hard_limit,
          "Fill from which it is forced.");
ABSL_FLAG(int32_t, grace_tokens, condense::CompactionConfig().grace_tokens,
          "The newest tokens, which are not ranked yet.");
ABSL_FLAG(double, drop_share, condense::CompactionConfig().drop_share,
          "Share of the candidates that --policy=attention drops in a cycle at first.");

// The server.
ABSL_FLAG(std::string, listen, "127.0.0.1:50051",
          "Address of the gRPC server. Port 0: a free one.");
ABSL_FLAG(std::string, metrics_listen, "",
          "Address of /metrics, as in 127.0.0.1:9464. Empty: none.");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(30),
          "How long running requests may go on "
          "after SIGTERM.");
ABSL_FLAG(absl::Duration, stall_timeout, absl::Seconds(30),
          "Health turns NOT_SERVING when work "
          "waits and no step ends for so long.");
ABSL_FLAG(int32_t, max_concurrent_streams, 1024, "Calls of one connection at once.");
ABSL_FLAG(absl::Duration, max_connection_age, absl::InfiniteDuration(),
          "Connections are asked to "
          "end at this age, so that clients spread over servers.");
ABSL_FLAG(absl::Duration, max_connection_age_grace, absl::InfiniteDuration(),
          "Calls of such a "
          "connection are cut off after this time.");
ABSL_FLAG(absl::Duration, keepalive_interval, absl::Seconds(30),
          "Ping a connection on which nothing came for so long.");
ABSL_FLAG(absl::Duration, keepalive_timeout, absl::Seconds(20),
          "Give a connection up whose ping is not answered for so long.");
ABSL_FLAG(absl::Duration, min_ping_interval, absl::Seconds(10),
          "Clients that ping more often are "
          "disconnected.");
ABSL_FLAG(ByteSize, transport_memory, {}, "Memory for gRPC's buffers. 0: no limit.");
ABSL_FLAG(std::string, log_level, "info", "debug, info, warning, error or off.");

// Limits on what a client may send; GetServerInfo reports them under the same names.
ABSL_FLAG(ByteSize, max_message_bytes, {condense::Limits().max_message_bytes}, "One gRPC message.");
ABSL_FLAG(ByteSize, max_prompt_bytes, {condense::Limits().max_prompt_bytes}, "Text of a prompt.");
ABSL_FLAG(int64_t, max_token_ids, condense::Limits().max_token_ids, "Ids to detokenize.");
ABSL_FLAG(int64_t, max_chat_messages, condense::Limits().max_chat_messages, "Messages of a chat.");
ABSL_FLAG(int64_t, max_stop_strings, condense::Limits().max_stop_strings, "Stop strings.");
ABSL_FLAG(ByteSize, max_stop_string_bytes, {condense::Limits().max_stop_string_bytes},
          "Each stop string.");
ABSL_FLAG(int64_t, max_stop_ids, condense::Limits().max_stop_ids, "Stop token ids.");
ABSL_FLAG(int64_t, max_logit_bias, condense::Limits().max_logit_bias, "Entries of logit_bias.");
ABSL_FLAG(int64_t, max_logprobs, condense::Limits().max_logprobs, "Alternatives of each token.");
ABSL_FLAG(ByteSize, max_request_id_bytes, {condense::Limits().max_request_id_bytes}, "Request id.");
ABSL_FLAG(ByteSize, max_tenant_bytes, {condense::Limits().max_tenant_bytes}, "Tenant.");

namespace condense {
namespace {

constexpr absl::string_view kProgram = "condensed";
constexpr char kUsage[] =
    "Serves a language model over gRPC.\n\n"
    "  condensed --model=FILE [--listen=ADDRESS] [--metrics_listen=ADDRESS] [flags]\n"
    "  condensed --flagfile=FILE    one flag on a line, # starts a comment\n\n"
    "Exit status: 0 after SIGTERM or SIGINT, 1 when it cannot serve, 2 for a wrong command line.";

bool asked_for_help = false;

// absl ends the process with 1 for a wrong flag as well as for --help; nothing else can exit while
// flags are parsed.
void ExitFromParsing() {
  std::fflush(nullptr);
  _exit(asked_for_help ? 0 : 2);
}
bool parsing = false;
void OnExit() {
  if (parsing) ExitFromParsing();
}

bool AsksForHelp(const char* argument) {
  const absl::string_view text(argument);
  return absl::StartsWith(text, "--help") || absl::StartsWith(text, "-help") ||
         text == "--version" || text == "-version";
}

void Describe() {
  absl::SetProgramUsageMessage(kUsage);
  absl::FlagsUsageConfig config;
  // Where a flag is defined is of no use to who reads --help; one name for all of ours.
  config.normalize_filename = [](absl::string_view file) {
    const bool is_ours =
        absl::EndsWith(file, "server/flags.cc") || absl::EndsWith(file, "server/guard_flags.cc");
    return std::string(is_ours ? kProgram : file);
  };
  const auto ours = [](absl::string_view file) { return file == kProgram; };
  config.contains_helpshort_flags = ours;
  config.contains_help_flags = ours;
  config.contains_helppackage_flags = ours;
  config.version_string = [] { return std::string("condensed " CONDENSE_VERSION "\n"); };
  absl::SetFlagsUsageConfig(config);
}

Limits LimitsFromFlags() {
  return {.max_message_bytes = absl::GetFlag(FLAGS_max_message_bytes).bytes,
          .max_prompt_bytes = absl::GetFlag(FLAGS_max_prompt_bytes).bytes,
          .max_token_ids = absl::GetFlag(FLAGS_max_token_ids),
          .max_chat_messages = absl::GetFlag(FLAGS_max_chat_messages),
          .max_stop_strings = absl::GetFlag(FLAGS_max_stop_strings),
          .max_stop_string_bytes = absl::GetFlag(FLAGS_max_stop_string_bytes).bytes,
          .max_stop_ids = absl::GetFlag(FLAGS_max_stop_ids),
          .max_logit_bias = absl::GetFlag(FLAGS_max_logit_bias),
          .max_logprobs = absl::GetFlag(FLAGS_max_logprobs),
          .max_request_id_bytes = absl::GetFlag(FLAGS_max_request_id_bytes).bytes,
          .max_tenant_bytes = absl::GetFlag(FLAGS_max_tenant_bytes).bytes};
}

absl::Status CheckLimits(const Limits& limits) {
  absl::Status status;
  VisitLimits(limits, [&](const char* name, int64_t value) {
    const int64_t most =
        std::string(name) == "max_logprobs" ? kMaxLogprobs : std::numeric_limits<int32_t>::max();
    if (!status.ok() || (value >= 0 && value <= most)) return;
    status = absl::InvalidArgumentError(
        absl::StrFormat("--%s is %d; must be in [0, %d]", name, value, most));
  });
  return status;
}

CompactionConfig CompactionFromFlags() {
  return {.enabled = absl::GetFlag(FLAGS_compaction),
          .swap_every = absl::GetFlag(FLAGS_swap_every),
          .step_time = absl::GetFlag(FLAGS_compaction_step_time),
          .step_share = absl::GetFlag(FLAGS_compaction_step_share),
          .cluster_window = absl::GetFlag(FLAGS_cluster_window),
          .staging_memory_bytes = absl::GetFlag(FLAGS_staging_memory).bytes,
          .pool_preallocate = absl::GetFlag(FLAGS_pool_preallocate),
          .pool_grow_at = absl::GetFlag(FLAGS_pool_grow_at),
          .pool_grow_by = absl::GetFlag(FLAGS_pool_grow_by),
          .pool_cap_bytes = absl::GetFlag(FLAGS_pool_cap_bytes).bytes,
          .mark_at = absl::GetFlag(FLAGS_mark_at),
          .soft_limit = absl::GetFlag(FLAGS_soft_limit),
          .hard_limit = absl::GetFlag(FLAGS_hard_limit),
          .grace_tokens = absl::GetFlag(FLAGS_grace_tokens),
          .drop_share = absl::GetFlag(FLAGS_drop_share)};
}

absl::StatusOr<EngineConfig> EngineFromFlags() {
  EngineConfig config;
  config.model_path = absl::GetFlag(FLAGS_model);
  config.model_name = absl::GetFlag(FLAGS_model_name);
  config.backend.kind = absl::GetFlag(FLAGS_backend);
  config.backend.num_threads = absl::GetFlag(FLAGS_threads);
  config.backend.cpu_isa = absl::GetFlag(FLAGS_cpu_isa);
  config.kv_memory_bytes = absl::GetFlag(FLAGS_kv_memory).bytes;
  config.block_tokens = absl::GetFlag(FLAGS_block_tokens);
  config.max_context = absl::GetFlag(FLAGS_max_context);
  config.max_sequences = absl::GetFlag(FLAGS_max_sequences);
  config.step_tokens = absl::GetFlag(FLAGS_step_tokens);
  config.decode_reserve_tokens = absl::GetFlag(FLAGS_decode_reserve_tokens);
  config.max_queued_requests = absl::GetFlag(FLAGS_max_queued_requests);
  config.max_queued_tokens = absl::GetFlag(FLAGS_max_queued_tokens);
  config.max_running_per_tenant = absl::GetFlag(FLAGS_max_running_per_tenant);
  config.stream_buffer_tokens = absl::GetFlag(FLAGS_stream_buffer_tokens);
  config.compaction = CompactionFromFlags();
  RETURN_IF_ERROR(FillGuard(&config));
  ASSIGN_OR_RETURN(
      config.compression,
      CompressionOfFlags(absl::GetFlag(FLAGS_preset), absl::GetFlag(FLAGS_policy),
                         absl::GetFlag(FLAGS_ratio), config.compaction.cluster_window));
  if (!config.compaction.enabled && config.compression.active()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--compaction is false and --preset is \"%s\"; must be \"off\" then",
                        absl::GetFlag(FLAGS_preset)));
  }
  return config;
}

absl::StatusOr<ServerOptions> ServerFromFlags() {
  ServerOptions options;
  options.listen = absl::GetFlag(FLAGS_listen);
  options.limits = LimitsFromFlags();
  options.drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  options.stall_timeout = absl::GetFlag(FLAGS_stall_timeout);
  options.max_concurrent_streams = absl::GetFlag(FLAGS_max_concurrent_streams);
  options.max_connection_age = absl::GetFlag(FLAGS_max_connection_age);
  options.max_connection_age_grace = absl::GetFlag(FLAGS_max_connection_age_grace);
  options.keepalive_interval = absl::GetFlag(FLAGS_keepalive_interval);
  options.keepalive_timeout = absl::GetFlag(FLAGS_keepalive_timeout);
  options.min_ping_interval = absl::GetFlag(FLAGS_min_ping_interval);
  options.transport_memory_bytes = absl::GetFlag(FLAGS_transport_memory).bytes;

  RETURN_IF_ERROR(CheckLimits(options.limits));
  if (options.max_concurrent_streams < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--max_concurrent_streams is %d; must be at least 1", options.max_concurrent_streams));
  }
  const struct {
    const char* name;
    absl::Duration value;
    absl::Duration least;
  } times[] = {{"drain_timeout", options.drain_timeout, absl::ZeroDuration()},
               {"stall_timeout", options.stall_timeout, absl::Seconds(1)},
               {"max_connection_age", options.max_connection_age, absl::Seconds(1)},
               {"max_connection_age_grace", options.max_connection_age_grace, absl::ZeroDuration()},
               {"keepalive_interval", options.keepalive_interval, absl::Seconds(1)},
               {"keepalive_timeout", options.keepalive_timeout, absl::Seconds(1)},
               {"min_ping_interval", options.min_ping_interval, absl::ZeroDuration()}};
  for (const auto& time : times) {
    if (time.value >= time.least) continue;
    return absl::InvalidArgumentError(absl::StrFormat("--%s is %s; must be at least %s", time.name,
                                                      absl::FormatDuration(time.value),
                                                      absl::FormatDuration(time.least)));
  }
  return options;
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(int argc, char** argv) {
  Describe();
  for (int i = 1; i < argc; ++i) asked_for_help = asked_for_help || AsksForHelp(argv[i]);
  std::atexit(OnExit);
  parsing = true;
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  parsing = false;

  if (rest.size() > 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "\"%s\" is not a flag; all arguments are flags, as in --model=FILE", rest[1]));
  }
  CommandLine line;
  ASSIGN_OR_RETURN(line.engine, EngineFromFlags());
  if (line.engine.model_path.empty()) {
    return absl::InvalidArgumentError("--model is not set; must name a GGUF file");
  }
  RETURN_IF_ERROR(line.engine.Validate());
  ASSIGN_OR_RETURN(line.server, ServerFromFlags());
  line.metrics_listen = absl::GetFlag(FLAGS_metrics_listen);
  line.log_level = absl::GetFlag(FLAGS_log_level);
  return line;
}

}  // namespace condense
