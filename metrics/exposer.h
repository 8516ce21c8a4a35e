#ifndef CONDENSE_METRICS_EXPOSER_H_
#define CONDENSE_METRICS_EXPOSER_H_

// The HTTP endpoint that serves /metrics to Prometheus.

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace prometheus {
class Exposer;
}  // namespace prometheus

namespace condense {

class Metrics;

// Owns: the listening socket and its two HTTP threads. Threads: immutable once made.
// Cost: destruction takes up to 2 s, the poll interval of the HTTP library's threads.
class Exposer {
 public:
  // `address` is "host:port" ("[host]:port" for IPv6); port 0 takes a free one. `metrics` must
  // outlive the exposer. INVALID_ARGUMENT for an address of another form, UNAVAILABLE, naming it,
  // if nothing can listen there.
  static absl::StatusOr<std::unique_ptr<Exposer>> Make(const std::string& address,
                                                       const Metrics& metrics);
  ~Exposer();

  int port() const;

 private:
  explicit Exposer(std::unique_ptr<prometheus::Exposer> exposer);

  const std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace condense

#endif  // CONDENSE_METRICS_EXPOSER_H_
