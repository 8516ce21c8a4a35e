#include "server/guard_flags.h"

#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "engine/quality/slo.h"
#include "kernels/base/status_macros.h"

using condense::GuardrailLimits;

ABSL_FLAG(bool, guard, true,
          "Measure what compaction costs, and hold it back or switch it off where a guardrail says "
          "so.");
ABSL_FLAG(absl::Duration, guard_evaluation_window, GuardrailLimits().evaluation_window,
          "How often guardrails judge.");
ABSL_FLAG(absl::Duration, guard_holding_dwell, GuardrailLimits().holding_dwell,
          "How long jobs are held back at least.");
ABSL_FLAG(absl::Duration, guard_uncompressed_dwell, GuardrailLimits().uncompressed_dwell,
          "How long new requests stay uncompressed at least.");
ABSL_FLAG(absl::Duration, guard_probation_dwell, GuardrailLimits().probation_dwell,
          "How long each stage of probation lasts at least.");
ABSL_FLAG(absl::Duration, guard_max_dwell, GuardrailLimits().max_dwell,
          "What the first two dwells are doubled up to when they follow each other quickly.");

ABSL_FLAG(double, guard_hit_ratio_warning, GuardrailLimits().hit_ratio.warning,
          "Mean hit ratio below which compaction is held back.");
ABSL_FLAG(double, guard_hit_ratio_limit, GuardrailLimits().hit_ratio.limit,
          "Mean hit ratio below which it is switched off.");
ABSL_FLAG(double, guard_hit_ratio_tail_warning, GuardrailLimits().hit_ratio_tail.warning,
          "The same of the 5th percentile.");
ABSL_FLAG(double, guard_hit_ratio_tail_limit, GuardrailLimits().hit_ratio_tail.limit,
          "The same of the 5th percentile.");
ABSL_FLAG(absl::Duration, guard_merge_latency_warning,
          absl::Seconds(GuardrailLimits().merge_latency.warning),
          "Time that compaction adds to a step, 99th percentile, above which it is held back.");
ABSL_FLAG(absl::Duration, guard_merge_latency_limit,
          absl::Seconds(GuardrailLimits().merge_latency.limit),
          "Above this it is held back too, and is told to have broken a limit.");
ABSL_FLAG(double, guard_memory_fluctuation_warning, GuardrailLimits().memory_fluctuation.warning,
          "Share by which memory swings in a cycle above which compaction is held back.");
ABSL_FLAG(double, guard_memory_fluctuation_limit, GuardrailLimits().memory_fluctuation.limit,
          "Share above which it is switched off.");
ABSL_FLAG(double, guard_drift_warning, GuardrailLimits().drift.warning,
          "Perplexity drift above which compaction is held back.");
ABSL_FLAG(double, guard_drift_limit, GuardrailLimits().drift.limit,
          "Perplexity drift above which it is switched off.");
ABSL_FLAG(double, guard_canary_warning, GuardrailLimits().canary.warning,
          "Share of planted facts found below which compaction is held back.");
ABSL_FLAG(double, guard_canary_limit, GuardrailLimits().canary.limit,
          "Share of planted facts found below which it is switched off.");
ABSL_FLAG(double, guard_first_token_warning, GuardrailLimits().first_token.warning,
          "Share by which compacted requests wait longer for their first token above which "
          "compaction is held back.");
ABSL_FLAG(double, guard_first_token_limit, GuardrailLimits().first_token.limit,
          "Above this it is held back too, and is told to have broken a limit.");
ABSL_FLAG(double, guard_memory_warning, GuardrailLimits().memory.warning,
          "Fill of the cache above which nothing keeps the ratio from rising.");
ABSL_FLAG(double, guard_memory_limit, GuardrailLimits().memory.limit,
          "Fill above which memory is told to have broken a limit.");
ABSL_FLAG(double, guard_hysteresis, GuardrailLimits().hysteresis,
          "Share of the distance between warning and limit by which a value must be back.");
ABSL_FLAG(absl::Duration, guard_flap_window, GuardrailLimits().flap_window,
          "So soon back in a mode doubles its dwell.");
ABSL_FLAG(absl::Duration, guard_hit_ratio_window, GuardrailLimits().hit_ratio.window,
          "Over how long it is read.");
ABSL_FLAG(absl::Duration, guard_hit_ratio_tail_window, GuardrailLimits().hit_ratio_tail.window,
          "Over how long it is read.");
ABSL_FLAG(absl::Duration, guard_merge_latency_window, GuardrailLimits().merge_latency.window,
          "Over how long it is read.");
ABSL_FLAG(absl::Duration, guard_memory_fluctuation_window,
          GuardrailLimits().memory_fluctuation.window, "Over how long it is read.");
ABSL_FLAG(absl::Duration, guard_drift_window, GuardrailLimits().drift.window,
          "Over how long it is read.");
ABSL_FLAG(absl::Duration, guard_canary_window, GuardrailLimits().canary.window,
          "Over how long it is read.");
ABSL_FLAG(absl::Duration, guard_first_token_window, GuardrailLimits().first_token.window,
          "Over how long it is read.");
ABSL_FLAG(absl::Duration, guard_memory_window, GuardrailLimits().memory.window,
          "Over how long it is read.");
ABSL_FLAG(std::string, slo, "",
          "Objectives that guardrails are bound to, like \"ttft_p99<=500ms, drift<=1% over 30m\".");

ABSL_FLAG(double, probe_share, condense::ProbeOptions().share,
          "Share of requests that may be computed again, uncompressed, to measure the drift.");
ABSL_FLAG(double, probe_step_share, condense::ProbeOptions().step_share,
          "Share of the time of steps that probes may take; an idle engine has no limit.");
ABSL_FLAG(absl::Duration, canary_interval, condense::ProbeOptions().canary_interval,
          "How long from one retrieval canary to the next at least; 0: none.");
ABSL_FLAG(int32_t, canary_tokens, condense::ProbeOptions().canary_tokens,
          "Length of a canary's prompt, in tokens.");

namespace condense {
namespace {

// A flag that was given the value that it has anyway counts as left out.
bool IsChanged(const std::string& flag) {
  const absl::CommandLineFlag* const found = absl::FindCommandLineFlag(flag);
  return found != nullptr && found->CurrentValue() != found->DefaultValue();
}

// An objective that nobody measures would be kept for ever.
absl::Status CheckSource(const SloTerm& term, const EngineConfig& config) {
  const ProbeOptions& probes = config.probes;
  if (term.guard == Guard::kDrift && probes.share <= 0.0) {
    return absl::InvalidArgumentError(
        "--slo binds drift and --probe_share is 0; it must be above 0 then");
  }
  if (term.guard != Guard::kCanary) return absl::OkStatus();
  const GuardLimit& canary = config.guard_limits.canary;
  const absl::Duration most = canary.window / static_cast<double>(canary.min_samples);
  if (probes.canary_interval > absl::ZeroDuration() && probes.canary_interval <= most) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "--slo binds canary over %s and --canary_interval is %s; it must be above 0 and at most %s, "
      "so that %d canaries are in the window",
      absl::FormatDuration(canary.window), absl::FormatDuration(probes.canary_interval),
      absl::FormatDuration(most), canary.min_samples));
}

absl::Status BindObjectives(const std::string& slo, EngineConfig* config) {
  ASSIGN_OR_RETURN(const std::vector<SloTerm> terms, ParseSlo(slo));
  if (!terms.empty() && !config->guard) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--slo is \"%s\", but nothing is guarded: it needs --guard and --compaction", slo));
  }
  for (const SloTerm& term : terms) {
    for (const char* edge : {"warning", "limit", "window"}) {
      const std::string flag = absl::StrFormat("guard_%s_%s", TraitsOf(term.guard).label, edge);
      if (!IsChanged(flag)) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("--%s is %s and --slo binds %s; one of them must be left out", flag,
                          absl::FindCommandLineFlag(flag)->CurrentValue(), SloName(term.guard)));
    }
    BindSlo(term, &config->guard_limits);
    RETURN_IF_ERROR(CheckSource(term, *config));
  }
  return absl::OkStatus();
}

void SetEdges(double warning, double limit, GuardLimit* edges) {
  edges->warning = warning;
  edges->limit = limit;
}

void SetTimes(GuardrailLimits* limits) {
  limits->hysteresis = absl::GetFlag(FLAGS_guard_hysteresis);
  limits->flap_window = absl::GetFlag(FLAGS_guard_flap_window);
  limits->hit_ratio.window = absl::GetFlag(FLAGS_guard_hit_ratio_window);
  limits->hit_ratio_tail.window = absl::GetFlag(FLAGS_guard_hit_ratio_tail_window);
  limits->merge_latency.window = absl::GetFlag(FLAGS_guard_merge_latency_window);
  limits->memory_fluctuation.window = absl::GetFlag(FLAGS_guard_memory_fluctuation_window);
  limits->drift.window = absl::GetFlag(FLAGS_guard_drift_window);
  limits->canary.window = absl::GetFlag(FLAGS_guard_canary_window);
  limits->first_token.window = absl::GetFlag(FLAGS_guard_first_token_window);
  limits->memory.window = absl::GetFlag(FLAGS_guard_memory_window);
  limits->evaluation_window = absl::GetFlag(FLAGS_guard_evaluation_window);
  limits->holding_dwell = absl::GetFlag(FLAGS_guard_holding_dwell);
  limits->uncompressed_dwell = absl::GetFlag(FLAGS_guard_uncompressed_dwell);
  limits->probation_dwell = absl::GetFlag(FLAGS_guard_probation_dwell);
  limits->max_dwell = absl::GetFlag(FLAGS_guard_max_dwell);
}

void SetAllEdges(GuardrailLimits* limits) {
  SetEdges(absl::GetFlag(FLAGS_guard_hit_ratio_warning), absl::GetFlag(FLAGS_guard_hit_ratio_limit),
           &limits->hit_ratio);
  SetEdges(absl::GetFlag(FLAGS_guard_hit_ratio_tail_warning),
           absl::GetFlag(FLAGS_guard_hit_ratio_tail_limit), &limits->hit_ratio_tail);
  SetEdges(absl::ToDoubleSeconds(absl::GetFlag(FLAGS_guard_merge_latency_warning)),
           absl::ToDoubleSeconds(absl::GetFlag(FLAGS_guard_merge_latency_limit)),
           &limits->merge_latency);
  SetEdges(absl::GetFlag(FLAGS_guard_memory_fluctuation_warning),
           absl::GetFlag(FLAGS_guard_memory_fluctuation_limit), &limits->memory_fluctuation);
  SetEdges(absl::GetFlag(FLAGS_guard_drift_warning), absl::GetFlag(FLAGS_guard_drift_limit),
           &limits->drift);
  SetEdges(absl::GetFlag(FLAGS_guard_canary_warning), absl::GetFlag(FLAGS_guard_canary_limit),
           &limits->canary);
  SetEdges(absl::GetFlag(FLAGS_guard_first_token_warning),
           absl::GetFlag(FLAGS_guard_first_token_limit), &limits->first_token);
  SetEdges(absl::GetFlag(FLAGS_guard_memory_warning), absl::GetFlag(FLAGS_guard_memory_limit),
           &limits->memory);
}

}  // namespace

absl::Status FillGuard(EngineConfig* config) {
  const bool compacts = config->compaction.enabled || config->compression.active();
  config->guard = absl::GetFlag(FLAGS_guard) && compacts;
  SetTimes(&config->guard_limits);
  SetAllEdges(&config->guard_limits);
  config->probes = {.share = absl::GetFlag(FLAGS_probe_share),
                    .step_share = absl::GetFlag(FLAGS_probe_step_share),
                    .canary_interval = absl::GetFlag(FLAGS_canary_interval),
                    .canary_tokens = absl::GetFlag(FLAGS_canary_tokens)};
  return BindObjectives(absl::GetFlag(FLAGS_slo), config);
}

}  // namespace condense
