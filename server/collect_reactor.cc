#include "server/collect_reactor.h"

#include <optional>
#include <utility>

#include "server/admission.h"
#include "server/convert_status.h"

namespace condense {

CollectReactor* CollectReactor::Refuse(const ServiceContext& context, const absl::Status& status) {
  auto reactor = std::make_shared<CollectReactor>(context, absl::InfiniteFuture(), nullptr);
  reactor->self_ = reactor;
  reactor->Finish(ToGrpcStatus(status));
  return reactor.get();
}

CollectReactor* CollectReactor::Start(const ServiceContext& context, Request request, Take take) {
  const absl::Time deadline = request.deadline;
  absl::StatusOr<std::shared_ptr<TokenStream>> stream = Admit(context, std::move(request));
  if (!stream.ok()) return Refuse(context, stream.status());
  auto reactor = std::make_shared<CollectReactor>(context, deadline, std::move(take));
  reactor->self_ = reactor;
  reactor->stream_ = *std::move(stream);
  context.dispatcher->Add(reactor);
  reactor->Pump();  // events that came before Add
  return reactor.get();
}

bool CollectReactor::Ready() const {
  return !finished_.load(std::memory_order_acquire) && stream_->has_events();
}

void CollectReactor::Pump() {
  MutexLock lock(&mutex_);
  while (!finished_.load(std::memory_order_relaxed)) {
    const std::optional<TokenEvent> event = stream_->TryNext();
    if (!event.has_value()) return;
    if (event->status.ok()) take_(*event);
    if (event->kind == TokenEvent::Kind::kFinished) FinishLocked(ToGrpcStatus(event->status));
  }
}

void CollectReactor::FinishLocked(const grpc::Status& status) {
  finished_.store(true, std::memory_order_release);
  Finish(status);
}

void CollectReactor::OnCancel() {
  if (stream_ == nullptr) return;
  const bool late = DeadlineEnded(deadline_);
  if (!late) stream_->Cancel();
  MutexLock lock(&mutex_);
  if (finished_.load(std::memory_order_relaxed)) return;
  FinishLocked(late ? grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "the deadline has passed")
                    : grpc::Status(grpc::StatusCode::CANCELLED, "the call was cancelled"));
}

void CollectReactor::OnDone() {
  context_.dispatcher->Remove(this);
  // The dispatcher may still hold a share; the last one deletes.
  const std::shared_ptr<CollectReactor> last = std::move(self_);
}

}  // namespace condense
