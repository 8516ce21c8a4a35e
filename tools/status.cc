// `condense status`: what a server runs and how busy it is, once or again and again.

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "tools/answer.h"
#include "tools/commands.h"
#include "tools/exit_code.h"
#include "tools/format.h"
#include "tools/generation_flags.h"
#include "tools/interrupt.h"
#include "tools/json_io.h"
#include "tools/screen.h"
#include "tools/server_status.h"
#include "tools/status_view.h"
#include "tools/text_table.h"

namespace condense {
namespace {

using Json = nlohmann::ordered_json;

// While it waits for an answer the watch does not see Ctrl-C.
constexpr absl::Duration kWatchCallTimeout = absl::Seconds(5);

struct StatusFlags {
  ServerFlags server;
  bool json = false;
  bool watch = false;
  double interval_seconds = 1;
  int64_t count = 0;  // of views until the end; 0: none
};

std::string ServerTable(const v1::GetServerInfoResponse& server) {
  TextTable table({TextTable::Align::kLeft});
  table.Add({"state", StateName(server.state())});
  table.Add({"version", absl::StrFormat("%s, schema revision %d", server.version(),
                                        server.schema_revision())});
  table.Add({"up", FormatSeconds(server.uptime_seconds())});
  table.Add({"backend", server.backend() + ", " + server.device()});
  if (!server.compression_mode_reason().empty()) {
    table.Add({"mode", DescribeMode(server.compression_mode(), server.compression_mode_reason())});
  }
  table.Add(
      {"compression", absl::StrFormat("%s; new requests: preset %s, policy %s, ratio %.2f",
                                      server.compression_mode(), server.compression_preset(),
                                      server.compression_policy(), server.compression_ratio())});
  table.Add({"batch", absl::StrFormat("%d sequences, %d tokens a step", server.max_sequences(),
                                      server.step_tokens())});
  return table.ToString(2);
}

std::string ModelTable(const v1::GetModelInfoResponse& model) {
  TextTable table({TextTable::Align::kLeft});
  table.Add({"name", model.name()});
  table.Add(
      {"architecture", absl::StrFormat("%s, %d layers, %d heads of %d, %d KV heads",
                                       model.architecture(), model.num_layers(), model.num_heads(),
                                       model.head_dim(), model.num_kv_heads())});
  table.Add({"weights", absl::StrFormat("%s parameters, %s", FormatCount(model.parameters()),
                                        FormatBytes(model.weight_bytes()))});
  table.Add({"context", FormatCount(model.max_context()) + " tokens"});
  table.Add({"vocabulary", FormatCount(model.vocab_size()) + " tokens"});
  table.Add({"chat template", model.chat_template_family().empty() ? "none: chat input is refused"
                                                                   : model.chat_template_family()});
  table.Add({"cache per token", FormatBytes(model.kv_bytes_per_token_16bit()) + " in 16 bits"});
  return table.ToString(2);
}

std::string LoadTable(const v1::GetLoadResponse& load) {
  const double share = load.kv_bytes_total() > 0
                           ? 100.0 * static_cast<double>(load.kv_bytes_used()) /
                                 static_cast<double>(load.kv_bytes_total())
                           : 0.0;
  TextTable table({TextTable::Align::kLeft});
  table.Add({"running", FormatCount(load.running()) + " requests"});
  table.Add({"queued", absl::StrFormat("%s requests, %s tokens", FormatCount(load.queued()),
                                       FormatCount(load.queued_tokens()))});
  table.Add(
      {"cache", absl::StrFormat("%s of %s (%.1f%%), %s tokens", FormatBytes(load.kv_bytes_used()),
                                FormatBytes(load.kv_bytes_total()), share,
                                FormatCount(load.logical_tokens()))});
  table.Add({"cache ratio", absl::StrFormat("%.2f", load.kv_ratio())});
  table.Add(
      {"besides", absl::StrFormat("%s staging, %s slack", FormatBytes(load.kv_bytes_staging()),
                                  FormatBytes(load.kv_bytes_slack()))});
  table.Add({"swaps", DescribeSwaps(load.swaps(), load.compaction_jobs_out())});
  table.Add({"speed", FormatNumber(load.tokens_per_second()) + " tokens/s over ten seconds"});
  const std::string last_step =
      load.has_seconds_since_last_step()
          ? absl::StrFormat(", the last %s ago", FormatSeconds(load.seconds_since_last_step()))
          : ", idle now";
  table.Add({"steps", FormatCount(load.steps()) + last_step});
  table.Add({"preemptions", FormatCount(load.preemptions())});
  return table.ToString(2);
}

int FailStatus(const absl::Status& status, const StatusFlags& flags) {
  if (flags.json) {
    std::printf("%s\n", ToJsonText({{"error", ErrorToJson(status)}}, !flags.watch).c_str());
  }
  return Fail(status);
}

int RunStatus(const StatusFlags& flags) {
  const auto client = flags.server.Connect();
  if (!client.ok()) return FailStatus(client.status(), flags);
  const auto status = AskStatus(client->get());
  if (!status.ok()) return FailStatus(status.status(), flags);
  if (flags.json) {
    std::printf("%s\n", ToJsonText(StatusToJson(*status), true).c_str());
    return kExitOk;
  }
  const std::string text = absl::StrFormat("server %s\n%s\nmodel\n%s\nload\n%s",
                                           flags.server.address, ServerTable(status->server),
                                           ModelTable(status->model), LoadTable(status->load));
  std::fputs(WithoutControls(text).c_str(), stdout);
  return kExitOk;
}

void PrintLine(const ServerStatus& status, absl::Time now) {
  Json line = {{"time", absl::FormatTime(absl::RFC3339_full, now, absl::UTCTimeZone())}};
  line.update(StatusToJson(status));
  std::printf("%s\n", ToJsonText(line, false).c_str());
  std::fflush(stdout);
}

// False if a signal came first.
bool SleepUntil(absl::Time until, Interrupt* interrupt) {
  while (!interrupt->Take()) {
    const absl::Duration left = until - absl::Now();
    if (left <= absl::ZeroDuration()) return true;
    pollfd signal = {.fd = interrupt->fd(), .events = POLLIN, .revents = 0};
    poll(&signal, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  }
  return false;
}

absl::Status Watch(Client* client, const StatusFlags& flags) {
  // Both leave the terminal as it was.
  Interrupt interrupt({SIGINT, SIGTERM});
  std::optional<Screen> screen;
  if (!flags.json) screen.emplace();
  absl::Time next = absl::Now();
  for (int64_t shown = 1;; ++shown) {
    const auto status = AskStatus(client);
    if (!status.ok()) return status.status();
    const absl::Time now = absl::Now();
    if (flags.json) {
      PrintLine(*status, now);
    } else {
      screen->Show(StatusView(*status, flags.server.address, now, screen->width()));
    }
    if (shown == flags.count) return absl::OkStatus();
    next = std::max(now, next + absl::Seconds(flags.interval_seconds));
    if (!SleepUntil(next, &interrupt)) return absl::OkStatus();
  }
}

int RunWatch(const StatusFlags& flags) {
  const auto client = flags.server.Connect(kWatchCallTimeout);
  const absl::Status status = client.ok() ? Watch(client->get(), flags) : client.status();
  return status.ok() ? static_cast<int>(kExitOk) : FailStatus(status, flags);
}

}  // namespace

void AddStatus(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* command = app->add_subcommand("status", "Show a server, its model and its load");
  flags->server.AddTo(command);
  command
      ->add_flag("--json", flags->json,
                 "Print JSON, the limits on requests included; with --watch one object per line")
      ->group("Output");
  auto* watch =
      command->add_flag("--watch", flags->watch, "Show it live, until Ctrl-C")->group("Output");
  command->add_option("--interval", flags->interval_seconds, "Seconds between two views")
      ->check(CLI::Range(0.05, 86400.0))
      ->capture_default_str()
      ->needs(watch)
      ->group("Output");
  command->add_option("--count", flags->count, "End after so many views")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 53))
      ->needs(watch)
      ->group("Output");
  command->footer(
      "Examples:\n"
      "  condense status\n"
      "  condense status --server 10.0.0.5:50051 --json\n"
      "  condense status --watch\n"
      "  condense status --watch --json --interval 60 >> status.jsonl\n\n"
      "--watch ends with Ctrl-C and exits 0. Where the output is no terminal\n"
      "it prints one view after the other.\n"
      "Exits 3 if no server answers.");
  command->callback(
      [flags, exit_code] { *exit_code = flags->watch ? RunWatch(*flags) : RunStatus(*flags); });
}

}  // namespace condense
