#ifndef CONDENSE_TOOLS_ANSWER_H_
#define CONDENSE_TOOLS_ANSWER_H_

// What one GenerateStream call delivered, collected, and as JSON or text for people.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "condense/v1/inference.pb.h"
#include "nlohmann/json.hpp"

namespace condense {

// Threads: thread-compatible.
struct Answer {
  absl::Time started;
  std::optional<absl::Time> first_token;
  absl::Time last_event;

  std::string request_id;
  uint64_t seed = 0;
  std::vector<int32_t> prompt_token_ids;  // if asked for
  std::string text;
  std::vector<v1::TokenInfo> tokens;
  std::optional<v1::GenerateEvent::Finished> finished;

  // Takes in the next event, which came at `now`.
  void Add(const v1::GenerateEvent& event, absl::Time now);
  // As seen here, network included; 0 while unknown.
  double SecondsToFirstToken() const;
  double SecondsInTotal() const;
  // Tokens after the first, per second between the first and the last; 0 for fewer than two.
  double TokensPerSecond() const;
};

// "stop", "length".
std::string FinishReasonName(v1::FinishReason reason);

// Everything in one object; with an `error` member if `status` is not OK.
nlohmann::ordered_json AnswerToJson(const Answer& answer, const absl::Status& status);
nlohmann::ordered_json ErrorToJson(const absl::Status& status);

// A few lines on speed, usage and the compaction receipt.
std::string DescribeAnswer(const Answer& answer);
nlohmann::ordered_json SwapsToJson(const v1::SwapCounts& swaps);
// "12 accepted, 1 refused, 0 useless, 0 failed, 2 dropped; 3 under way"
std::string DescribeSwaps(const v1::SwapCounts& swaps, int32_t jobs_out);
// One line per token: its bytes, its log-probability, the alternatives.
std::string DescribeLogprobs(const Answer& answer);

}  // namespace condense

#endif  // CONDENSE_TOOLS_ANSWER_H_
