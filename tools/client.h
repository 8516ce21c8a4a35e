#ifndef CONDENSE_TOOLS_CLIENT_H_
#define CONDENSE_TOOLS_CLIENT_H_

// A Condense server as the tools see it: its calls as functions, its errors as absl::Status.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "condense/v1/admin.pb.h"
#include "condense/v1/inference.pb.h"
#include "condense/v1/info.pb.h"
#include "condense/v1/text.pb.h"

namespace condense {

// One GenerateStream call that was started.
// Threads: thread-safe. Destruction cancels the call and waits for its end.
class GenerateCall {
 public:
  virtual ~GenerateCall() = default;
  // The server ends the request within one step. Idempotent.
  virtual void Cancel() = 0;
  // Whether the call ended within `timeout`.
  virtual bool WaitFor(absl::Duration timeout) = 0;
  // How it ended. REQUIRES: it ended.
  virtual absl::Status status() const = 0;
};

// Errors are the server's own codes and messages, marked as retryable where the server says so (see
// exit_code.h); UNAVAILABLE without that mark means that there is no server or no connection.
// Threads: thread-safe.
class Client {
 public:
  static constexpr absl::Duration kDefaultCallTimeout = absl::Seconds(30);

  // Tries until `timeout` is over, or returns UNAVAILABLE as soon as the address refuses. Calls
  // with one answer end after `call_timeout`.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(
      const std::string& address, absl::Duration timeout,
      absl::Duration call_timeout = kDefaultCallTimeout);
  ~Client();

  absl::StatusOr<v1::GetServerInfoResponse> ServerInfo();
  absl::StatusOr<v1::GetModelInfoResponse> ModelInfo();
  absl::StatusOr<v1::GetLoadResponse> Load();
  absl::StatusOr<v1::SetCompressionResponse> SetCompression(
      const v1::SetCompressionRequest& request);
  absl::StatusOr<v1::GetCompressionResponse> GetCompression();
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request);

  // `on_event` runs on a thread of gRPC, for one event after the other; the next event is read when
  // it returns. `on_done`, if given, runs once after the last event.
  std::unique_ptr<GenerateCall> Generate(const v1::GenerateRequest& request, absl::Duration timeout,
                                         std::function<void(const v1::GenerateEvent&)> on_event,
                                         std::function<void()> on_done = {});

 private:
  struct Stubs;
  explicit Client(std::unique_ptr<Stubs> stubs);
  std::unique_ptr<Stubs> stubs_;
};

}  // namespace condense

#endif  // CONDENSE_TOOLS_CLIENT_H_
