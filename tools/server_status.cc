#include "tools/server_status.h"

#include "absl/strings/ascii.h"
#include "kernels/base/status_macros.h"
#include "tools/answer.h"

namespace condense {
namespace {

using Json = nlohmann::ordered_json;

Json ReadingJson(const v1::GuardReading& reading) {
  Json out = {{"guard", reading.guard()}, {"samples", reading.samples()}};
  if (reading.has_value()) out["value"] = reading.value();
  if (reading.has_lower()) out["lower"] = reading.lower();
  if (reading.has_upper()) out["upper"] = reading.upper();
  if (reading.has_warning()) out["warning"] = reading.warning();
  if (reading.has_limit()) out["limit"] = reading.limit();
  out["min_samples"] = reading.min_samples();
  out["level"] = reading.level();
  return out;
}

Json ServerJson(const v1::GetServerInfoResponse& server) {
  Json readings = Json::array();
  for (const v1::GuardReading& reading : server.guard_readings()) {
    readings.push_back(ReadingJson(reading));
  }
  Json limits = Json::object();
  for (const auto& [field, limit] : server.limits()) limits[field] = limit;
  return {{"version", server.version()},
          {"state", StateName(server.state())},
          {"backend", server.backend()},
          {"device", server.device()},
          {"uptime_seconds", server.uptime_seconds()},
          {"schema_revision", server.schema_revision()},
          {"compression_mode", server.compression_mode()},
          {"compression_mode_reason", server.compression_mode_reason()},
          {"compression_preset", server.compression_preset()},
          {"compression_policy", server.compression_policy()},
          {"compression_ratio", server.compression_ratio()},
          {"kv_memory_bytes", server.kv_memory_bytes()},
          {"max_sequences", server.max_sequences()},
          {"step_tokens", server.step_tokens()},
          {"guard_readings", readings},
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

}  // namespace

std::string StateName(v1::GetServerInfoResponse::State state) {
  const std::string name = absl::AsciiStrToLower(v1::GetServerInfoResponse::State_Name(state));
  return name.rfind("state_", 0) == 0 ? name.substr(6) : name;
}

std::string DescribeMode(const std::string& mode, const std::string& reason) {
  return reason.empty() ? mode : mode + ": " + reason;
}

absl::StatusOr<ServerStatus> AskStatus(Client* client) {
  ServerStatus status;
  ASSIGN_OR_RETURN(status.server, client->ServerInfo());
  ASSIGN_OR_RETURN(status.model, client->ModelInfo());
  ASSIGN_OR_RETURN(status.load, client->Load());
  return status;
}

Json StatusToJson(const ServerStatus& status) {
  return {{"server", ServerJson(status.server)},
          {"model", ModelJson(status.model)},
          {"load", LoadJson(status.load)}};
}

}  // namespace condense
