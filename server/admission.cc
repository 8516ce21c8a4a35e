#include "server/admission.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "metrics/log.h"
#include "server/convert_status.h"

namespace condense {
namespace {

constexpr absl::Duration kRetryWhenFull = absl::Seconds(1);
constexpr absl::Duration kRetryWhenDraining = absl::Seconds(5);

// The client's cancellation at its deadline overtakes our own timer by about this much.
constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(20);

bool FitsEmptyCache(const Request& request, const ModelInfo& info) {
  const int64_t output = std::max(request.stop.max_tokens, request.score ? 0 : 1);
  return static_cast<int64_t>(request.prompt.size()) + output <= info.max_request_tokens;
}

void CountRefusal(const ServiceContext& context, RejectionReason reason) {
  if (context.metrics == nullptr) return;
  context.metrics->requests(RequestOutcome::kRejected).Increment();
  context.metrics->rejections(reason).Increment();
}

}  // namespace

absl::Time CallDeadline(const grpc::CallbackServerContext& call) {
  const std::chrono::system_clock::time_point deadline = call.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

std::string CallRequestId(const grpc::CallbackServerContext& call) {
  const auto found = call.client_metadata().find("x-request-id");
  if (found == call.client_metadata().end()) return "";
  return std::string(found->second.data(), found->second.size());
}

bool DeadlineEnded(absl::Time deadline) { return absl::Now() + kDeadlineSlack >= deadline; }

void CountInvalid(const ServiceContext& context, const absl::Status& status) {
  CountRefusal(context, RejectionReason::kInvalid);
  LogDebug("request refused: %s", absl::StatusCodeToString(status.code()));
}

absl::StatusOr<std::shared_ptr<TokenStream>> Admit(const ServiceContext& context, Request request) {
  const std::string id = request.id;
  const bool fits = FitsEmptyCache(request, context.engine->model_info());
  absl::StatusOr<std::shared_ptr<TokenStream>> stream = context.engine->Submit(std::move(request));
  if (stream.ok()) return stream;

  absl::Status refusal = stream.status();
  RejectionReason reason = RejectionReason::kInvalid;
  if (absl::IsUnavailable(refusal)) {
    reason = RejectionReason::kDraining;
    SetRetryAfter(kRetryWhenDraining, &refusal);
  } else if (absl::IsResourceExhausted(refusal) && fits) {
    reason = RejectionReason::kQueueFull;
    SetRetryAfter(kRetryWhenFull, &refusal);
  } else if (absl::IsResourceExhausted(refusal)) {
    reason = RejectionReason::kTooLong;
  }
  CountRefusal(context, reason);
  LogDebug("request %s refused: %s", id, absl::StatusCodeToString(refusal.code()));
  return refusal;
}

}  // namespace condense
