#ifndef CONDENSE_SERVER_CONVERT_REQUEST_H_
#define CONDENSE_SERVER_CONVERT_REQUEST_H_

// Client messages -> engine types. Every field is checked here; nothing behind this file sees an
// unchecked value.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "condense/v1/common.pb.h"
#include "condense/v1/inference.pb.h"
#include "condense/v1/text.pb.h"
#include "engine/config.h"
#include "engine/engine.h"
#include "server/limits.h"

namespace condense {

// What requests are checked against. All of it outlives the conversion.
struct ServedModel {
  const ModelInfo& info;
  const Tokenizer& tokenizer;
  const ChatTemplate& chat_template;
  const Limits& limits;
  int32_t cluster_window = CompactionConfig().cluster_window;
};

// What the client wants to see of the answer.
struct OutputChoice {
  bool text = true;
  bool tokens = true;  // ids, with log-probabilities if they were asked for
  bool prompt = false;
};

struct GenerateCall {
  Request request;
  OutputChoice output;
};

// Threads: all functions are pure but for the ids and seeds they draw. Cost: tokenization.
// Errors of all: INVALID_ARGUMENT naming field, value and limit; NOT_FOUND for another model;
// FAILED_PRECONDITION for a chat where the model's template is not known.
//
// `default_id` names the request if the message does not; empty: an id is drawn.
absl::StatusOr<GenerateCall> ToGenerateCall(const v1::GenerateRequest& message,
                                            const std::string& default_id, absl::Time deadline,
                                            const ServedModel& model);
absl::StatusOr<Request> ToScoreRequest(const v1::ScoreRequest& message,
                                       const std::string& default_id, absl::Time deadline,
                                       const ServedModel& model);
absl::StatusOr<std::vector<ChatMessage>> ToChatMessages(const v1::Chat& chat, const Limits& limits);
bool AddGenerationPrompt(const v1::Chat& chat);
absl::StatusOr<std::vector<TokenId>> ToTokenIds(const v1::TokenizeRequest& message,
                                                const ServedModel& model);
// The ids to detokenize.
absl::StatusOr<std::vector<TokenId>> ToTokenIds(const v1::DetokenizeRequest& message,
                                                const ServedModel& model);

}  // namespace condense

#endif  // CONDENSE_SERVER_CONVERT_REQUEST_H_
