#include "server/convert_request.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "server/convert_compression.h"
#include "server/field_check.h"

namespace condense {
namespace {

static_assert(kMaxLogprobs <= kMaxTopLogprobs);

uint64_t DrawBits() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

absl::Status CheckModel(const std::string& asked, const ServedModel& model) {
  if (asked == model.info.name) return absl::OkStatus();
  RETURN_IF_ERROR(CheckName("model", asked, 1024));
  return absl::NotFoundError(
      absl::StrFormat("model is \"%s\"; this server has only \"%s\"", asked, model.info.name));
}

absl::StatusOr<std::string> RequestId(bool given, const std::string& id,
                                      const std::string& default_id, const Limits& limits) {
  if (!given && default_id.empty()) return absl::StrFormat("%016x", DrawBits());
  const std::string& chosen = given ? id : default_id;
  RETURN_IF_ERROR(CheckName("request_id", chosen, limits.max_request_id_bytes));
  if (chosen.empty()) {
    return absl::InvalidArgumentError("request_id has 0 bytes; at least 1, or leave it out");
  }
  return chosen;
}

absl::Status CheckTokenId(const std::string& field, int64_t id, const ServedModel& model) {
  return CheckIntRange(field, id, 0, int64_t{model.info.vocab_size} - 1);
}

template <typename Ids>
absl::StatusOr<std::vector<TokenId>> CheckedIds(const std::string& field, const Ids& ids,
                                                const ServedModel& model) {
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < model.info.vocab_size) continue;
    return CheckTokenId(absl::StrFormat("%s[%d]", field, i), ids[i], model);
  }
  return std::vector<TokenId>(ids.begin(), ids.end());
}

absl::StatusOr<std::vector<TokenId>> EncodeChat(const v1::Chat& chat, const ServedModel& model) {
  ASSIGN_OR_RETURN(const std::vector<ChatMessage> messages, ToChatMessages(chat, model.limits));
  return model.chat_template.Encode(model.tokenizer, messages, AddGenerationPrompt(chat));
}

// `Message` is GenerateRequest or ScoreRequest: both have the same oneof `input`.
template <typename Message>
absl::StatusOr<std::vector<TokenId>> EncodeInput(const Message& message, const ServedModel& model) {
  if (message.has_parse_special() && !message.has_text()) {
    return absl::InvalidArgumentError("parse_special is set; it is for the input `text` only");
  }
  switch (message.input_case()) {
    case Message::kText:
      RETURN_IF_ERROR(CheckCount("text", static_cast<int64_t>(message.text().size()), "bytes",
                                 model.limits.max_prompt_bytes));
      return model.tokenizer.Encode(
          message.text(), EncodeOptions{.parse_special = message.parse_special(), .add_bos = true});
    case Message::kTokenIds:
      RETURN_IF_ERROR(
          CheckCount("token_ids", message.token_ids().ids_size(), "ids", model.info.max_context));
      return CheckedIds("token_ids", message.token_ids().ids(), model);
    case Message::kChat:
      return EncodeChat(message.chat(), model);
    case Message::INPUT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("input is not set; must be one of text, token_ids, chat");
}

// The prompt's ids: at least `least`, and `room` fewer than the context holds.
template <typename Message>
absl::StatusOr<std::vector<TokenId>> EncodePrompt(const Message& message, int64_t least,
                                                  int64_t room, const ServedModel& model) {
  ASSIGN_OR_RETURN(std::vector<TokenId> ids, EncodeInput(message, model));
  const int64_t limit = model.info.max_context - room;
  RETURN_IF_ERROR(CheckCount("prompt", static_cast<int64_t>(ids.size()), "tokens", limit));
  if (static_cast<int64_t>(ids.size()) < least) {
    return absl::InvalidArgumentError(
        absl::StrFormat("prompt has %d tokens; at least %d", ids.size(), least));
  }
  return ids;
}

absl::Status ConvertLogitBias(const v1::SamplingParams& message, const ServedModel& model,
                              SamplingParams* params) {
  RETURN_IF_ERROR(CheckCount("sampling.logit_bias",
                             static_cast<int64_t>(message.logit_bias().size()), "entries",
                             model.limits.max_logit_bias));
  for (const auto& [id, bias] : message.logit_bias()) {
    RETURN_IF_ERROR(CheckTokenId("sampling.logit_bias key", id, model));
    RETURN_IF_ERROR(CheckRange(absl::StrFormat("sampling.logit_bias[%d]", id), bias, -100, 100));
    params->logit_bias.emplace_back(id, bias);
  }
  std::sort(params->logit_bias.begin(), params->logit_bias.end());
  return absl::OkStatus();
}

absl::StatusOr<SamplingParams> ConvertSampling(const v1::SamplingParams& message,
                                               const ServedModel& model) {
  SamplingParams params;
  const auto take = [](bool given, auto value, auto* to) {
    if (given) *to = value;
  };
  take(message.has_temperature(), message.temperature(), &params.temperature);
  take(message.has_top_k(), message.top_k(), &params.top_k);
  take(message.has_top_p(), message.top_p(), &params.top_p);
  take(message.has_min_p(), message.min_p(), &params.min_p);
  take(message.has_repetition_penalty(), message.repetition_penalty(), &params.repetition_penalty);
  take(message.has_presence_penalty(), message.presence_penalty(), &params.presence_penalty);
  take(message.has_frequency_penalty(), message.frequency_penalty(), &params.frequency_penalty);
  params.seed = message.has_seed() ? message.seed() : DrawBits();

  RETURN_IF_ERROR(CheckRange("sampling.temperature", params.temperature, 0, 100));
  RETURN_IF_ERROR(CheckIntRange("sampling.top_k", params.top_k, 0, model.info.vocab_size));
  RETURN_IF_ERROR(CheckRangeAbove("sampling.top_p", params.top_p, 0, 1));
  RETURN_IF_ERROR(CheckRange("sampling.min_p", params.min_p, 0, 1));
  RETURN_IF_ERROR(CheckRange("sampling.repetition_penalty", params.repetition_penalty, 0.01f, 10));
  RETURN_IF_ERROR(CheckRange("sampling.presence_penalty", params.presence_penalty, -10, 10));
  RETURN_IF_ERROR(CheckRange("sampling.frequency_penalty", params.frequency_penalty, -10, 10));
  RETURN_IF_ERROR(ConvertLogitBias(message, model, &params));
  return params;
}

absl::StatusOr<StopParams> ConvertStopping(const v1::StopParams& message,
                                           const ServedModel& model) {
  const Limits& limits = model.limits;
  StopParams params;
  if (message.has_max_tokens()) {
    RETURN_IF_ERROR(
        CheckIntRange("stopping.max_tokens", message.max_tokens(), 1, model.info.max_context));
    params.max_tokens = message.max_tokens();
  }
  const int32_t most = message.has_max_tokens() ? params.max_tokens : model.info.max_context;
  RETURN_IF_ERROR(CheckIntRange("stopping.min_tokens", message.min_tokens(), 0, most));
  params.min_tokens = message.min_tokens();

  RETURN_IF_ERROR(
      CheckCount("stopping.stop", message.stop_size(), "entries", limits.max_stop_strings));
  for (int i = 0; i < message.stop_size(); ++i) {
    const auto bytes = static_cast<int64_t>(message.stop(i).size());
    RETURN_IF_ERROR(CheckIntRange(absl::StrFormat("bytes of stopping.stop[%d]", i), bytes, 1,
                                  limits.max_stop_string_bytes));
  }
  params.stop_strings.assign(message.stop().begin(), message.stop().end());

  RETURN_IF_ERROR(CheckCount("stopping.stop_token_ids", message.stop_token_ids_size(), "entries",
                             limits.max_stop_ids));
  ASSIGN_OR_RETURN(params.stop_ids,
                   CheckedIds("stopping.stop_token_ids", message.stop_token_ids(), model));
  params.ignore_eos = message.ignore_eos();
  return params;
}

absl::Status ConvertOutput(const v1::OutputOptions& message, const Limits& limits,
                           GenerateCall* call) {
  if (message.has_logprobs()) {
    RETURN_IF_ERROR(CheckIntRange("output.logprobs", message.logprobs(), 0, limits.max_logprobs));
    call->request.num_logprobs = message.logprobs();
  }
  call->output.text = !message.has_text() || message.text();
  call->output.tokens = !message.has_token_ids() || message.token_ids() || message.has_logprobs();
  call->output.prompt = message.prompt();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GenerateCall> ToGenerateCall(const v1::GenerateRequest& message,
                                            const std::string& default_id, absl::Time deadline,
                                            const ServedModel& model) {
  GenerateCall call;
  Request& request = call.request;
  if (message.has_model()) RETURN_IF_ERROR(CheckModel(message.model(), model));
  ASSIGN_OR_RETURN(request.id, RequestId(message.has_request_id(), message.request_id(), default_id,
                                         model.limits));
  ASSIGN_OR_RETURN(request.sampling, ConvertSampling(message.sampling(), model));
  ASSIGN_OR_RETURN(request.stop, ConvertStopping(message.stopping(), model));
  RETURN_IF_ERROR(ConvertOutput(message.output(), model.limits, &call));
  RETURN_IF_ERROR(CheckIntRange("priority", message.priority(), -100, 100));
  request.priority = message.priority();
  RETURN_IF_ERROR(CheckName("tenant", message.tenant(), model.limits.max_tenant_bytes));
  request.tenant = message.tenant();
  ASSIGN_OR_RETURN(request.compression, ToCompression(message.compression(), model.cluster_window));
  request.deadline = deadline;
  ASSIGN_OR_RETURN(request.prompt, EncodePrompt(message, 1, 1, model));
  return call;
}

absl::StatusOr<Request> ToScoreRequest(const v1::ScoreRequest& message,
                                       const std::string& default_id, absl::Time deadline,
                                       const ServedModel& model) {
  Request request;
  if (message.has_model()) RETURN_IF_ERROR(CheckModel(message.model(), model));
  ASSIGN_OR_RETURN(request.id, RequestId(message.has_request_id(), message.request_id(), default_id,
                                         model.limits));
  request.score = true;
  request.sampling.temperature = 0;
  ASSIGN_OR_RETURN(request.compression, ToCompression(message.compression(), model.cluster_window));
  // Without being asked, a score is the model's, whatever the default of the cache.
  if (!request.compression.has_value()) request.compression = Compression();
  request.deadline = deadline;
  ASSIGN_OR_RETURN(request.prompt, EncodePrompt(message, 2, 0, model));
  return request;
}

absl::StatusOr<std::vector<ChatMessage>> ToChatMessages(const v1::Chat& chat,
                                                        const Limits& limits) {
  RETURN_IF_ERROR(
      CheckCount("chat.messages", chat.messages_size(), "entries", limits.max_chat_messages));
  int64_t bytes = 0;
  std::vector<ChatMessage> messages;
  for (int i = 0; i < chat.messages_size(); ++i) {
    const v1::ChatMessage& message = chat.messages(i);
    RETURN_IF_ERROR(CheckName(absl::StrFormat("chat.messages[%d].role", i), message.role(), 64));
    bytes += static_cast<int64_t>(message.content().size());
    RETURN_IF_ERROR(CheckCount("chat.messages", bytes, "bytes", limits.max_prompt_bytes));
    messages.push_back({message.role(), message.content()});
  }
  return messages;
}

bool AddGenerationPrompt(const v1::Chat& chat) {
  return !chat.has_add_generation_prompt() || chat.add_generation_prompt();
}

absl::StatusOr<std::vector<TokenId>> ToTokenIds(const v1::TokenizeRequest& message,
                                                const ServedModel& model) {
  RETURN_IF_ERROR(CheckCount("text", static_cast<int64_t>(message.text().size()), "bytes",
                             model.limits.max_prompt_bytes));
  return model.tokenizer.Encode(
      message.text(),
      EncodeOptions{.parse_special = message.parse_special(), .add_bos = message.add_bos()});
}

absl::StatusOr<std::vector<TokenId>> ToTokenIds(const v1::DetokenizeRequest& message,
                                                const ServedModel& model) {
  RETURN_IF_ERROR(
      CheckCount("token_ids", message.token_ids_size(), "ids", model.limits.max_token_ids));
  return CheckedIds("token_ids", message.token_ids(), model);
}

}  // namespace condense
