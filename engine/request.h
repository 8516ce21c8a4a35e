#ifndef CONDENSE_ENGINE_REQUEST_H_
#define CONDENSE_ENGINE_REQUEST_H_

// What a client asks of the engine (immutable once submitted) and what it gets back.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache/compression.h"
#include "kernels/op_args.h"

namespace condense {

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::vector<std::pair<TokenId, float>> logit_bias;
  uint64_t seed = 0;  // the submitter draws one where the client gave none
};

struct StopParams {
  int32_t max_tokens = 0;  // 0: as many as the context allows
  int32_t min_tokens =
      0;  // end-of-text, stop ids and stop strings have no effect before this many tokens
  std::vector<std::string> stop_strings;
  std::vector<TokenId> stop_ids;
  bool ignore_eos = false;
};

struct Request {
  std::string id;  // unique among live requests; the submitter draws one where the client gave none
  std::vector<TokenId> prompt;  // at least one token
  SamplingParams sampling;
  StopParams stop;
  int32_t num_logprobs = -1;  // -1: none; 0: of the chosen token; n: with n alternatives
  bool score = false;  // report the log-probability of every prompt token after the first; generate
                       // stop.max_tokens tokens afterwards only if that is > 0
  absl::Time deadline = absl::InfiniteFuture();
  int32_t priority = 0;  // higher goes first
  std::string tenant;    // for fairness; empty is a tenant too
  // Nothing: the engine's default when the request is submitted; Engine::Submit fills it in.
  std::optional<Compression> compression;
  // The first tokens to "generate", whatever the model prefers: they are scored one by one.
  std::vector<TokenId> forced;
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kDeadline, kError };
const char* FinishReasonName(
    FinishReason reason);  // "stop", "length", "cancelled", "deadline", "error"

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;  // token ids delivered
  absl::Duration queue_time;      // submitted until first scheduled
  absl::Duration time_to_first_token;
  absl::Duration total_time;
  int32_t preemptions = 0;
};

// What the cache holds for this request at its end, in whole blocks, beside a 16-bit cache of the
// same tokens.
struct Receipt {
  int64_t logical_tokens = 0;
  int64_t entries_held = 0;  // over all units
  int64_t bytes_held = 0;
  int64_t bytes_16bit = 0;  // of the same tokens in a 16-bit cache
  double ratio = 1.0;
  int64_t swaps_accepted = 0;     // of units
  int64_t swaps_refused = 0;      // by validation
  double min_hit_ratio = 1.0;     // of accepted swaps; 1: there was none
  double hit_ratio = 1.0;         // of all swaps together: SequenceCompaction::hit_ratio
  double max_output_error = 0.0;  // validated, of accepted swaps
  std::optional<double> drift;    // of its perplexity, where a probe has measured it
  std::string preset = "off";
  std::string policy = "none";
  std::string mode = "uncompressed";  // the engine's when the request ended
};

// Marks the error of a request that ended through no fault of its own, and says whether it is one:
// the same request may succeed at once.
void SetTransient(absl::Status* status);
bool IsTransient(const absl::Status& status);

// One delivered token. Text is cut at UTF-8 boundaries, so a token may carry the text of several or
// none.
struct TokenOutput {
  TokenId token = 0;
  float logprob = 0.0f;           // of this token; 0 if not asked for
  std::vector<TokenLogprob> top;  // alternatives asked for, largest first
};

// What a stream carries. `accepted` first, then any number of `tokens`, then exactly one
// `finished`.
struct TokenEvent {
  enum class Kind : uint8_t { kAccepted, kTokens, kFinished };
  Kind kind = Kind::kTokens;
  int32_t queue_position = 0;       // kAccepted
  std::vector<TokenOutput> tokens;  // kTokens
  std::string text;                 // kTokens: valid UTF-8 (see TextCutter)
  // kFinished:
  FinishReason reason = FinishReason::kStop;
  absl::Status status;  // not OK exactly when reason is kCancelled, kDeadline or kError
  std::optional<TokenId> stop_token;  // what ended it, if a token or a string did
  std::string stop_string;
  Usage usage;
  Receipt receipt;
  std::vector<float> prompt_logprobs;  // score: of prompt[1..], natural logarithm
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_REQUEST_H_
