// `condense status`: what a server runs and how busy it is.

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "tools/answer.h"
#include "tools/commands.h"
#include "tools/exit_code.h"
#include "tools/format.h"
#include "tools/generation_flags.h"
#include "tools/json_io.h"
#include "tools/text_table.h"

namespace condense {
namespace {

using Json = nlohmann::ordered_json;

struct StatusFlags {
  ServerFlags server;
  bool json = false;
};

struct ServerStatus {
  v1::GetServerInfoResponse server;
  v1::GetModelInfoResponse model;
  v1::GetLoadResponse load;
};

absl::StatusOr<ServerStatus> Ask(const ServerFlags& flags) {
  ASSIGN_OR_RETURN(const auto client, flags.Connect());
  ServerStatus status;
  ASSIGN_OR_RETURN(status.server, client->ServerInfo());
  ASSIGN_OR_RETURN(status.model, client->ModelInfo());
  ASSIGN_OR_RETURN(status.load, client->Load());
  return status;
}

// "serving", "draining", "stalled".
std::string StateName(v1::GetServerInfoResponse::State state) {
  const std::string name = absl::AsciiStrToLower(v1::GetServerInfoResponse::State_Name(state));
  return name.rfind("state_", 0) == 0 ? name.substr(6) : name;
}

Json ServerJson(const v1::GetServerInfoResponse& server) {
  Json limits = Json::object();
  for (const auto& [field, limit] : server.limits()) limits[field] = limit;
  return {{"version", server.version()},
          {"state", StateName(server.state())},
          {"backend", server.backend()},
          {"device", server.device()},
          {"uptime_seconds", server.uptime_seconds()},
          {"schema_revision", server.schema_revision()},
          {"compression_mode", server.compression_mode()},
          {"compression_preset", server.compression_preset()},
          {"compression_policy", server.compression_policy()},
          {"compression_ratio", server.compression_ratio()},
          {"kv_memory_bytes", server.kv_memory_bytes()},
          {"max_sequences", server.max_sequences()},
          {"step_tokens", server.step_tokens()},
          {"limits", limits}};
}

Json ModelJson(const v1::GetModelInfoResponse& model) {
  Json out = {{"name", model.name()},
              {"architecture", model.architecture()},
              {"parameters", model.parameters()},
              {"vocab_size", model.vocab_size()},
              {"max_context", model.max_context()},
              {"num_layers", model.num_layers()},
              {"num_heads", model.num_heads()},
              {"num_kv_heads", model.num_kv_heads()},
              {"head_dim", model.head_dim()},
              {"end_token_ids", Json(model.end_token_ids())},
              {"chat_template_family", model.chat_template_family()},
              {"kv_bytes_per_token_16bit", model.kv_bytes_per_token_16bit()},
              {"weight_bytes", model.weight_bytes()}};
  if (model.has_bos_token_id()) out["bos_token_id"] = model.bos_token_id();
  return out;
}

Json LoadJson(const v1::GetLoadResponse& load) {
  Json out = {{"running", load.running()},
              {"queued", load.queued()},
              {"queued_tokens", load.queued_tokens()},
              {"kv_bytes_used", load.kv_bytes_used()},
              {"kv_bytes_total", load.kv_bytes_total()},
              {"logical_tokens", load.logical_tokens()},
              {"steps", load.steps()},
              {"tokens_per_second", load.tokens_per_second()},
              {"preemptions", load.preemptions()},
              {"kv_bytes_staging", load.kv_bytes_staging()},
              {"kv_bytes_slack", load.kv_bytes_slack()},
              {"kv_bytes_16bit", load.kv_bytes_16bit()},
              {"kv_ratio", load.kv_ratio()},
              {"compaction_jobs_out", load.compaction_jobs_out()},
              {"swaps", SwapsToJson(load.swaps())}};
  if (load.has_seconds_since_last_step()) {
    out["seconds_since_last_step"] = load.seconds_since_last_step();
  }
  return out;
}

std::string ServerTable(const v1::GetServerInfoResponse& server) {
  TextTable table({TextTable::Align::kLeft});
  table.Add({"state", StateName(server.state())});
  table.Add({"version", absl::StrFormat("%s, schema revision %d", server.version(),
                                        server.schema_revision())});
  table.Add({"up", FormatSeconds(server.uptime_seconds())});
  table.Add({"backend", server.backend() + ", " + server.device()});
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

int RunStatus(const StatusFlags& flags) {
  const auto status = Ask(flags.server);
  if (!status.ok()) {
    if (flags.json) {
      std::printf("%s\n", ToJsonText({{"error", ErrorToJson(status.status())}}, true).c_str());
    }
    return Fail(status.status());
  }
  if (flags.json) {
    const Json out = {{"server", ServerJson(status->server)},
                      {"model", ModelJson(status->model)},
                      {"load", LoadJson(status->load)}};
    std::printf("%s\n", ToJsonText(out, true).c_str());
    return kExitOk;
  }
  const std::string text = absl::StrFormat("server %s\n%s\nmodel\n%s\nload\n%s",
                                           flags.server.address, ServerTable(status->server),
                                           ModelTable(status->model), LoadTable(status->load));
  std::fputs(WithoutControls(text).c_str(), stdout);
  return kExitOk;
}

}  // namespace

void AddStatus(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* command = app->add_subcommand("status", "Show a server, its model and its load");
  flags->server.AddTo(command);
  command->add_flag("--json", flags->json, "Print JSON, the limits on requests included")
      ->group("Output");
  command->footer(
      "Examples:\n"
      "  condense status\n"
      "  condense status --server 10.0.0.5:50051 --json\n\n"
      "Exits 3 if no server answers.");
  command->callback([flags, exit_code] { *exit_code = RunStatus(*flags); });
}

}  // namespace condense
