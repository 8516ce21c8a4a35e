#ifndef CONDENSE_SERVER_CONVERT_RESPONSE_H_
#define CONDENSE_SERVER_CONVERT_RESPONSE_H_

// Engine types -> messages to the client.

#include "condense/v1/inference.pb.h"
#include "condense/v1/info.pb.h"
#include "engine/engine.h"
#include "server/convert_request.h"

namespace condense {

// What one token's message is made with.
struct TokenFormat {
  const Tokenizer* tokenizer = nullptr;
  OutputChoice output;
  bool logprobs = false;
};

// Threads: all functions are pure.
void AppendTokens(const TokenEvent& event, const TokenFormat& format, std::string* text,
                  google::protobuf::RepeatedPtrField<v1::TokenInfo>* tokens);
// REQUIRES: event.kind is kFinished and event.status is OK.
void FillFinished(const TokenEvent& event, v1::GenerateEvent::Finished* message);
void FillFinished(const TokenEvent& event, v1::GenerateResponse* message);
// REQUIRES: event.kind is kFinished and event.status is not OK.
void FillError(const TokenEvent& event, v1::GenerateEvent::Error* message);
void FillUsage(const Usage& usage, v1::Usage* message);
// Log-probabilities, their mean, usage and receipt.
void FillScore(const TokenEvent& event, v1::ScoreResponse* message);

void FillModelInfo(const ServedModel& model, v1::GetModelInfoResponse* message);
void FillLoad(const EngineLoad& load, absl::Time now, v1::GetLoadResponse* message);

}  // namespace condense

#endif  // CONDENSE_SERVER_CONVERT_RESPONSE_H_
