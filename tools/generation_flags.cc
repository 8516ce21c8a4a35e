#include "tools/generation_flags.h"

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

struct Bias {
  int32_t token = 0;
  float value = 0.0f;
};

absl::StatusOr<Bias> ParseBias(const std::string& text) {
  const size_t equals = text.find('=');
  Bias bias;
  if (equals == std::string::npos || !absl::SimpleAtoi(text.substr(0, equals), &bias.token) ||
      !absl::SimpleAtof(text.substr(equals + 1), &bias.value)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--logit_bias is ID=VALUE, for example 42=-100; got \"%s\"", text));
  }
  return bias;
}

// One value per use of the flag, so that a positional argument may follow it.
template <typename T>
void AddRepeated(CLI::App* command, const char* name, std::vector<T>* values, const char* help) {
  command->add_option(name, *values, help)->allow_extra_args(false)->group("Stopping");
}

}  // namespace

void ServerFlags::AddTo(CLI::App* command) {
  command->add_option("--server", address, "Address of the server, HOST:PORT")
      ->envname("CONDENSE_SERVER")
      ->capture_default_str()
      ->group("Server");
  command
      ->add_option("--connect_timeout", connect_timeout_seconds, "Seconds to wait for a connection")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str()
      ->group("Server");
}

absl::StatusOr<std::unique_ptr<Client>> ServerFlags::Connect(absl::Duration call_timeout) const {
  return Client::Connect(address, absl::Seconds(connect_timeout_seconds), call_timeout);
}

void GenerationFlags::AddTo(CLI::App* command) {
  const auto sampling = [&](const char* name, auto& value, const char* help) {
    return command->add_option(name, value, help)->group("Sampling");
  };
  sampling("--temperature", temperature, "0 takes the most likely token");
  sampling("--top_k", top_k, "Keep the k most likely tokens; 0 keeps all");
  sampling("--top_p", top_p, "Keep the most likely tokens up to this probability");
  sampling("--min_p", min_p, "Drop tokens below this share of the most likely one");
  sampling("--repetition_penalty", repetition_penalty,
           "Weaken tokens of prompt and output; 1 is off");
  sampling("--presence_penalty", presence_penalty, "Weaken generated tokens, once");
  sampling("--frequency_penalty", frequency_penalty, "Weaken generated tokens, per occurrence");
  sampling("--logit_bias", logit_bias, "ID=VALUE, added to one token's logit; repeatable")
      ->allow_extra_args(false);
  sampling("--seed", seed, "Same seed, same text");
  const auto stopping = [&](const char* name, auto& value, const char* help) {
    return command->add_option(name, value, help)->group("Stopping");
  };
  stopping("--max_tokens", max_tokens, "At most this many new tokens");
  stopping("--min_tokens", min_tokens, "Do not stop before this many");
  AddRepeated(command, "--stop", &stop, "Stop before this text; repeatable");
  AddRepeated(command, "--stop_token_id", &stop_token_ids, "Stop at this token; repeatable");
  command->add_flag("--ignore_eos", ignore_eos, "Go on past the model's end of text")
      ->group("Stopping");
  command->add_option("--timeout", timeout_seconds, "Seconds for the whole request; 0: no limit")
      ->check(CLI::Range(0.0, 1e9))
      ->group("Stopping");
  compression.AddTo(command, "the server's");
  command->add_option("--model", model, "Refuse another model than this")->group("Server");
  command->add_option("--priority", priority, "Higher goes first")->group("Server");
  command->add_option("--tenant", tenant, "Whose turn the request takes")->group("Server");
}

absl::Status GenerationFlags::Fill(v1::GenerateRequest* request) const {
  v1::SamplingParams* sampling = request->mutable_sampling();
  if (temperature) sampling->set_temperature(*temperature);
  if (top_k) sampling->set_top_k(*top_k);
  if (top_p) sampling->set_top_p(*top_p);
  if (min_p) sampling->set_min_p(*min_p);
  if (repetition_penalty) sampling->set_repetition_penalty(*repetition_penalty);
  if (presence_penalty) sampling->set_presence_penalty(*presence_penalty);
  if (frequency_penalty) sampling->set_frequency_penalty(*frequency_penalty);
  if (seed) sampling->set_seed(*seed);
  for (const std::string& text : logit_bias) {
    ASSIGN_OR_RETURN(const Bias bias, ParseBias(text));
    (*sampling->mutable_logit_bias())[bias.token] = bias.value;
  }
  v1::StopParams* stopping = request->mutable_stopping();
  if (max_tokens) stopping->set_max_tokens(*max_tokens);
  if (min_tokens) stopping->set_min_tokens(*min_tokens);
  stopping->mutable_stop()->Assign(stop.begin(), stop.end());
  stopping->mutable_stop_token_ids()->Assign(stop_token_ids.begin(), stop_token_ids.end());
  if (ignore_eos) stopping->set_ignore_eos(true);
  if (!model.empty()) request->set_model(model);
  if (!tenant.empty()) request->set_tenant(tenant);
  if (priority) request->set_priority(*priority);
  if (compression.given()) *request->mutable_compression() = compression.ToMessage();
  return absl::OkStatus();
}

absl::Duration GenerationFlags::timeout() const {
  return timeout_seconds > 0 ? absl::Seconds(timeout_seconds) : absl::InfiniteDuration();
}

}  // namespace condense
