#include "server/generate_reactor.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "server/admission.h"
#include "server/convert_status.h"

namespace condense {
namespace {

// With 20 alternatives each, so many tokens stay far below the 4 MiB that gRPC clients accept.
constexpr size_t kMaxTokensPerMessage = 1024;

}  // namespace

GenerateReactor* GenerateReactor::Start(const ServiceContext& context,
                                        const grpc::CallbackServerContext& call,
                                        const v1::GenerateRequest& request) {
  auto reactor = std::make_shared<GenerateReactor>(context);
  reactor->self_ = reactor;
  const absl::Status begun = reactor->Begin(call, request);
  if (!begun.ok()) reactor->Finish(ToGrpcStatus(begun));
  // gRPC calls OnDone only after the method handler has returned this.
  return reactor.get();
}

absl::Status GenerateReactor::Begin(const grpc::CallbackServerContext& call,
                                    const v1::GenerateRequest& request) {
  absl::StatusOr<GenerateCall> converted =
      ToGenerateCall(request, CallRequestId(call), CallDeadline(call), context_.model());
  if (!converted.ok()) {
    CountInvalid(context_, converted.status());
    return converted.status();
  }
  format_ = {.tokenizer = &context_.engine->tokenizer(),
             .output = converted->output,
             .logprobs = converted->request.num_logprobs >= 0};
  deadline_ = converted->request.deadline;
  seed_ = converted->request.sampling.seed;
  if (converted->output.prompt) {
    MutexLock lock(&mutex_);
    prompt_ = converted->request.prompt;
  }
  ASSIGN_OR_RETURN(stream_, Admit(context_, std::move(converted->request)));
  context_.dispatcher->Add(self_);
  Pump();  // events that came before Add
  return absl::OkStatus();
}

bool GenerateReactor::Ready() const {
  return !busy_.load(std::memory_order_acquire) && stream_->has_events();
}

void GenerateReactor::Pump() {
  MutexLock lock(&mutex_);
  PumpLocked();
}

void GenerateReactor::PumpLocked() {
  while (!busy_.load(std::memory_order_relaxed)) {
    if (accepted_sent_ && prompt_.has_value()) return WritePrompt();
    const std::optional<TokenEvent> event = TakeEvent();
    if (!event.has_value() || WriteEvent(*event)) return;
  }
}

std::optional<TokenEvent> GenerateReactor::TakeEvent() {
  std::optional<TokenEvent> event = std::exchange(held_, std::nullopt);
  if (!event.has_value()) event = stream_->TryNext();
  if (!event.has_value() || event->kind != TokenEvent::Kind::kTokens) return event;
  while (event->tokens.size() < kMaxTokensPerMessage) {
    std::optional<TokenEvent> next = stream_->TryNext();
    if (!next.has_value()) break;
    if (next->kind != TokenEvent::Kind::kTokens) {
      held_ = std::move(next);
      break;
    }
    event->text += next->text;
    std::move(next->tokens.begin(), next->tokens.end(), std::back_inserter(event->tokens));
  }
  return event;
}

bool GenerateReactor::WriteEvent(const TokenEvent& event) {
  message_.Clear();
  switch (event.kind) {
    case TokenEvent::Kind::kAccepted: {
      v1::GenerateEvent::Accepted* accepted = message_.mutable_accepted();
      accepted->set_request_id(stream_->request_id());
      accepted->set_queue_position(event.queue_position);
      accepted->set_seed(seed_);
      accepted_sent_ = true;
      break;
    }
    case TokenEvent::Kind::kTokens: {
      v1::GenerateEvent::Tokens* tokens = message_.mutable_tokens();
      AppendTokens(event, format_, tokens->mutable_text(), tokens->mutable_tokens());
      if (tokens->text().empty() && tokens->tokens().empty()) return false;
      break;
    }
    case TokenEvent::Kind::kFinished:
      WriteLast(event);
      return true;
  }
  busy_.store(true, std::memory_order_release);
  StartWrite(&message_);
  return true;
}

void GenerateReactor::WritePrompt() {
  message_.Clear();
  message_.mutable_prompt()->mutable_token_ids()->Add(prompt_->begin(), prompt_->end());
  prompt_.reset();
  busy_.store(true, std::memory_order_release);
  StartWrite(&message_);
}

void GenerateReactor::WriteLast(const TokenEvent& event) {
  if (event.status.ok()) {
    FillFinished(event, message_.mutable_finished());
  } else {
    FillError(event, message_.mutable_error());
  }
  busy_.store(true, std::memory_order_release);
  finished_ = true;
  StartWriteAndFinish(&message_, grpc::WriteOptions(), ToGrpcStatus(event.status));
}

void GenerateReactor::OnWriteDone(bool ok) {
  MutexLock lock(&mutex_);
  if (finished_) return;
  if (ok) {
    busy_.store(false, std::memory_order_release);
    PumpLocked();
    return;
  }
  stream_->Cancel();
  finished_ = true;
  Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client is gone"));
}

void GenerateReactor::OnCancel() {
  if (stream_ == nullptr) return;
  const bool late = DeadlineEnded(deadline_);
  if (!late) stream_->Cancel();
  MutexLock lock(&mutex_);
  if (finished_) return;
  busy_.store(true, std::memory_order_release);
  finished_ = true;
  Finish(late ? grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "the deadline has passed")
              : grpc::Status(grpc::StatusCode::CANCELLED, "the call was cancelled"));
}

void GenerateReactor::OnDone() {
  context_.dispatcher->Remove(this);
  // The dispatcher may still hold a share; the last one deletes.
  const std::shared_ptr<GenerateReactor> last = std::move(self_);
}

}  // namespace condense
