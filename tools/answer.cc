#include "tools/answer.h"

#include <cmath>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "tools/format.h"
#include "tools/text_table.h"

namespace condense {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kTokenBytesShown = 24;

Json UsageToJson(const v1::Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens()},
          {"completion_tokens", usage.completion_tokens()},
          {"queue_seconds", usage.queue_seconds()},
          {"time_to_first_token_seconds", usage.time_to_first_token_seconds()},
          {"total_seconds", usage.total_seconds()},
          {"preemptions", usage.preemptions()}};
}

Json ReceiptToJson(const v1::CompactionReceipt& receipt) {
  Json out = {{"logical_tokens", receipt.logical_tokens()},
              {"entries_held", receipt.entries_held()},
              {"bytes_held", receipt.bytes_held()},
              {"bytes_16bit", receipt.bytes_16bit()},
              {"ratio", receipt.ratio()},
              {"preset", receipt.preset()},
              {"policy", receipt.policy()},
              {"mode", receipt.mode()},
              {"swaps_accepted", receipt.swaps_accepted()},
              {"swaps_refused", receipt.swaps_refused()},
              {"min_hit_ratio", receipt.min_hit_ratio()},
              {"max_output_error", receipt.max_output_error()},
              {"hit_ratio", receipt.hit_ratio()}};
  if (receipt.has_drift()) out["drift"] = receipt.drift();
  return out;
}

Json LogprobsToJson(const Answer& answer) {
  Json out = Json::array();
  for (const v1::TokenInfo& token : answer.tokens) {
    Json top = Json::array();
    for (const v1::TokenLogprob& other : token.top()) {
      top.push_back({{"token_id", other.token_id()},
                     {"logprob", other.logprob()},
                     {"token", other.token_bytes()}});
    }
    out.push_back({{"token_id", token.token_id()}, {"logprob", token.logprob()}, {"top", top}});
  }
  return out;
}

bool HasLogprobs(const Answer& answer) {
  return !answer.tokens.empty() && answer.tokens.front().has_logprob();
}

std::string DescribeReceipt(const v1::CompactionReceipt& receipt) {
  return absl::StrFormat(
      "%s in %s entries for %s tokens, ratio %.2f (16 bits: %s), preset %s, policy %s, mode %s",
      FormatBytes(receipt.bytes_held()), FormatCount(receipt.entries_held()),
      FormatCount(receipt.logical_tokens()), receipt.ratio(), FormatBytes(receipt.bytes_16bit()),
      receipt.preset(), receipt.policy(), receipt.mode());
}

std::string DescribeReceiptSwaps(const v1::CompactionReceipt& receipt) {
  if (receipt.swaps_accepted() == 0) {
    return absl::StrFormat("none, %s refused", FormatCount(receipt.swaps_refused()));
  }
  return absl::StrFormat(
      "%s accepted, %s refused; hit ratio %.3f, of one %.3f at least, largest output error %.3f%s",
      FormatCount(receipt.swaps_accepted()), FormatCount(receipt.swaps_refused()),
      receipt.hit_ratio(), receipt.min_hit_ratio(), receipt.max_output_error(),
      receipt.has_drift() ? absl::StrFormat("; drift %.2f%%", 100 * receipt.drift()) : "");
}

std::string DescribeEnd(const v1::GenerateEvent::Finished& finished) {
  std::string out = FinishReasonName(finished.reason());
  if (finished.has_stop_string()) {
    out += absl::StrFormat(" at \"%s\"", OneLine(finished.stop_string(), kTokenBytesShown));
  } else if (finished.has_stop_token_id()) {
    out += absl::StrFormat(" at token %d", finished.stop_token_id());
  }
  return out;
}

}  // namespace

void Answer::Add(const v1::GenerateEvent& event, absl::Time now) {
  last_event = now;
  switch (event.event_case()) {
    case v1::GenerateEvent::kAccepted:
      request_id = event.accepted().request_id();
      seed = event.accepted().seed();
      break;
    case v1::GenerateEvent::kPrompt:
      prompt_token_ids.assign(event.prompt().token_ids().begin(), event.prompt().token_ids().end());
      break;
    case v1::GenerateEvent::kTokens:
      if (!first_token) first_token = now;
      text += event.tokens().text();
      tokens.insert(tokens.end(), event.tokens().tokens().begin(), event.tokens().tokens().end());
      break;
    case v1::GenerateEvent::kFinished:
      finished = event.finished();
      break;
    case v1::GenerateEvent::kError:  // the call's status says the same
    case v1::GenerateEvent::EVENT_NOT_SET:
      break;
  }
}

double Answer::SecondsToFirstToken() const {
  return first_token ? absl::ToDoubleSeconds(*first_token - started) : 0.0;
}

double Answer::SecondsInTotal() const {
  return last_event > started ? absl::ToDoubleSeconds(last_event - started) : 0.0;
}

double Answer::TokensPerSecond() const {
  const int64_t made =
      finished ? finished->usage().completion_tokens() : static_cast<int64_t>(tokens.size());
  const double seconds = SecondsInTotal() - SecondsToFirstToken();
  if (made < 2 || seconds <= 0.0) return 0.0;
  return static_cast<double>(made - 1) / seconds;
}

std::string FinishReasonName(v1::FinishReason reason) {
  if (reason == v1::FINISH_REASON_STOP) return "stop";
  if (reason == v1::FINISH_REASON_LENGTH) return "length";
  return absl::AsciiStrToLower(v1::FinishReason_Name(reason));
}

Json ErrorToJson(const absl::Status& status) {
  return {{"code", absl::StatusCodeToString(status.code())},
          {"message", std::string(status.message())}};
}

Json AnswerToJson(const Answer& answer, const absl::Status& status) {
  Json out = {{"request_id", answer.request_id}, {"seed", answer.seed}, {"text", answer.text}};
  Json ids = Json::array();
  for (const v1::TokenInfo& token : answer.tokens) ids.push_back(token.token_id());
  out["token_ids"] = ids;
  if (!answer.prompt_token_ids.empty()) out["prompt_token_ids"] = answer.prompt_token_ids;
  if (HasLogprobs(answer)) out["logprobs"] = LogprobsToJson(answer);
  if (answer.finished) {
    const auto& finished = *answer.finished;
    out["finish_reason"] = FinishReasonName(finished.reason());
    if (finished.has_stop_token_id()) out["stop_token_id"] = finished.stop_token_id();
    if (finished.has_stop_string()) out["stop_string"] = finished.stop_string();
    out["usage"] = UsageToJson(finished.usage());
    out["receipt"] = ReceiptToJson(finished.receipt());
  }
  out["client"] = {{"time_to_first_token_seconds", answer.SecondsToFirstToken()},
                   {"total_seconds", answer.SecondsInTotal()},
                   {"tokens_per_second", answer.TokensPerSecond()}};
  if (!status.ok()) out["error"] = ErrorToJson(status);
  return out;
}

Json SwapsToJson(const v1::SwapCounts& swaps) {
  return {{"accepted", swaps.accepted()},
          {"refused", swaps.refused()},
          {"useless", swaps.useless()},
          {"failed", swaps.failed()},
          {"dropped", swaps.dropped()}};
}

std::string DescribeSwaps(const v1::SwapCounts& swaps, int32_t jobs_out) {
  const auto count = [](uint64_t value) { return FormatCount(static_cast<int64_t>(value)); };
  return absl::StrFormat("%s accepted, %s refused, %s useless, %s failed, %s dropped; %s under way",
                         count(swaps.accepted()), count(swaps.refused()), count(swaps.useless()),
                         count(swaps.failed()), count(swaps.dropped()), FormatCount(jobs_out));
}

std::string DescribeAnswer(const Answer& answer) {
  TextTable table({TextTable::Align::kLeft});
  table.Add({"speed", answer.first_token
                          ? absl::StrFormat("%s tokens/s after the first token, which took %s",
                                            FormatNumber(answer.TokensPerSecond()),
                                            FormatSeconds(answer.SecondsToFirstToken()))
                          : "no token came"});
  if (answer.finished) {
    const v1::Usage& usage = answer.finished->usage();
    table.Add({"tokens",
               absl::StrFormat("%s prompt, %s generated, in %s", FormatCount(usage.prompt_tokens()),
                               FormatCount(usage.completion_tokens()),
                               FormatSeconds(answer.SecondsInTotal()))});
    table.Add(
        {"waited", absl::StrFormat("%s in the queue, set back %d times",
                                   FormatSeconds(usage.queue_seconds()), usage.preemptions())});
    table.Add({"ended", DescribeEnd(*answer.finished)});
    table.Add({"cache", DescribeReceipt(answer.finished->receipt())});
    table.Add({"swaps", DescribeReceiptSwaps(answer.finished->receipt())});
  }
  table.Add({"request", absl::StrFormat("%s, seed %d", answer.request_id, answer.seed)});
  return table.ToString();
}

std::string DescribeLogprobs(const Answer& answer) {
  if (!HasLogprobs(answer)) return "";
  using Align = TextTable::Align;
  TextTable table({Align::kRight, Align::kRight, Align::kLeft});
  table.Add({"token", "logprob", "alternatives"});
  for (const v1::TokenInfo& token : answer.tokens) {
    std::string others;
    for (const v1::TokenLogprob& other : token.top()) {
      others += absl::StrFormat("%s%d \"%s\" %.3f", others.empty() ? "" : ", ", other.token_id(),
                                OneLine(other.token_bytes(), kTokenBytesShown), other.logprob());
    }
    table.Add({absl::StrFormat("%d", token.token_id()), absl::StrFormat("%.3f", token.logprob()),
               others});
  }
  return table.ToString();
}

}  // namespace condense
