#ifndef CONDENSE_SERVER_GENERATE_REACTOR_H_
#define CONDENSE_SERVER_GENERATE_REACTOR_H_

// One streaming call: TokenStream -> messages on the wire.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "condense/v1/inference.pb.h"
#include "kernels/base/mutex.h"
#include "server/convert_response.h"
#include "server/service_context.h"
#include "server/stream_dispatcher.h"

namespace condense {

// At most one write is in flight, and nothing is taken from the TokenStream meanwhile: a slow
// reader fills its own TokenStream, which the engine bounds, and no other buffer. Owns: itself,
// from Start until gRPC calls OnDone. Threads: gRPC's and the dispatcher's.
class GenerateReactor final : public grpc::ServerWriteReactor<v1::GenerateEvent>,
                              public StreamReader {
 public:
  // Submits the request and begins to deliver; a refusal becomes the call's status. `call` and
  // `context` outlive the reactor.
  static GenerateReactor* Start(const ServiceContext& context,
                                const grpc::CallbackServerContext& call,
                                const v1::GenerateRequest& request);

  explicit GenerateReactor(const ServiceContext& context) : context_(context) {}

  bool Ready() const override;
  void Pump() override;

 private:
  absl::Status Begin(const grpc::CallbackServerContext& call, const v1::GenerateRequest& request);
  void PumpLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The next event; neighbouring token events become one.
  std::optional<TokenEvent> TakeEvent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts the write of what `event` becomes; false if it becomes nothing.
  bool WriteEvent(const TokenEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WritePrompt() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteLast(const TokenEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  const ServiceContext& context_;

  // Set by Begin, constant after.
  std::shared_ptr<TokenStream> stream_;  // null if the request was refused
  TokenFormat format_;
  absl::Time deadline_;
  uint64_t seed_ = 0;

  // A write is in flight or the call is finished. Written under mutex_ only.
  std::atomic<bool> busy_{false};

  Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<std::vector<TokenId>> prompt_ ABSL_GUARDED_BY(mutex_);  // to be sent once
  std::optional<TokenEvent> held_ ABSL_GUARDED_BY(mutex_);  // taken while tokens were merged
  bool accepted_sent_ ABSL_GUARDED_BY(mutex_) = false;
  v1::GenerateEvent message_ ABSL_GUARDED_BY(mutex_);  // in flight

  std::shared_ptr<GenerateReactor> self_;
};

}  // namespace condense

#endif  // CONDENSE_SERVER_GENERATE_REACTOR_H_
