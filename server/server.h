#ifndef CONDENSE_SERVER_SERVER_H_
#define CONDENSE_SERVER_SERVER_H_

// The gRPC server over an engine: services, health, reflection, drain.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/limits.h"

namespace condense {

class Engine;
class Metrics;
class StreamDispatcher;

struct ServerOptions {
  std::string listen = "127.0.0.1:50051";  // port 0: a free one
  Limits limits;
  absl::Duration stall_timeout = absl::Seconds(30);  // not ready when no step ends for so long
  absl::Duration drain_timeout = absl::Seconds(30);  // of Admin.Drain, where it names none

  int32_t max_concurrent_streams = 1024;  // of one connection
  // Clients that pool one connection spread over servers only if it ends now and then.
  absl::Duration max_connection_age = absl::InfiniteDuration();
  absl::Duration max_connection_age_grace = absl::InfiniteDuration();
  // A connection on which nothing comes is pinged after the first and given up after the second.
  absl::Duration keepalive_interval = absl::Seconds(30);
  absl::Duration keepalive_timeout = absl::Seconds(20);
  absl::Duration min_ping_interval = absl::Seconds(10);
  int64_t transport_memory_bytes = 0;  // gRPC's own buffers; 0: no limit
};

// Owns: the port, the services, the watch over the engine. Threads: thread-safe.
class Server {
 public:
  // `engine` and `dispatcher` (which the engine's on_published notifies) outlive the server, so
  // does `metrics`, which may be null. UNAVAILABLE if nothing can listen at the address.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options, Engine* engine,
                                                       StreamDispatcher* dispatcher,
                                                       Metrics* metrics);
  // Shutdown, if it has not been.
  ~Server();

  int port() const;
  // The address of options.listen with the real port.
  const std::string& address() const;

  // Refuses new requests from now on and waits until the running ones are delivered, at most
  // `timeout`. Returns the number of those that are not.
  int32_t Drain(absl::Duration timeout);
  // Ends what is left and stops listening. Idempotent.
  void Shutdown();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace condense

#endif  // CONDENSE_SERVER_SERVER_H_
