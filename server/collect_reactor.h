#ifndef CONDENSE_SERVER_COLLECT_REACTOR_H_
#define CONDENSE_SERVER_COLLECT_REACTOR_H_

// One unary call over the engine: collects the events of its TokenStream into a response.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>

#include "kernels/base/mutex.h"
#include "server/service_context.h"
#include "server/stream_dispatcher.h"

namespace condense {

// Owns: itself, from Start until gRPC calls OnDone. Threads: gRPC's and the dispatcher's.
class CollectReactor final : public grpc::ServerUnaryReactor, public StreamReader {
 public:
  // Adds an event to the response. Called in order, by one thread at a time; events that end in an
  // error become the call's status instead.
  using Take = std::function<void(const TokenEvent& event)>;

  // A call that ends with `status` at once.
  static CollectReactor* Refuse(const ServiceContext& context, const absl::Status& status);
  // Submits the request; a refusal becomes the call's status. `context` outlives the reactor.
  static CollectReactor* Start(const ServiceContext& context, Request request, Take take);

  CollectReactor(const ServiceContext& context, absl::Time deadline, Take take)
      : context_(context), deadline_(deadline), take_(std::move(take)) {}

  bool Ready() const override;
  void Pump() override;

 private:
  void FinishLocked(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnCancel() override;
  void OnDone() override;

  const ServiceContext& context_;
  const absl::Time deadline_;
  const Take take_;
  std::shared_ptr<TokenStream> stream_;  // constant after Start; null if the request was refused

  std::atomic<bool> finished_{false};  // written under mutex_ only
  Mutex mutex_;                        // take_ is called while it is held

  std::shared_ptr<CollectReactor> self_;
};

}  // namespace condense

#endif  // CONDENSE_SERVER_COLLECT_REACTOR_H_
