#include "metrics/exposer.h"

#include <prometheus/exposer.h>
#include <prometheus/registry.h>

#include <exception>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "metrics/metrics.h"

namespace condense {
namespace {

// The HTTP library also understands lists, bare ports and suffixes for TLS; none of these is ours.
absl::Status CheckAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon != std::string::npos && colon > 0 && address.find(',') == std::string::npos &&
      address.find_first_not_of("0123456789", colon + 1) == std::string::npos &&
      absl::SimpleAtoi(address.substr(colon + 1), &port) && port <= 65535) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "metrics address \"%s\" must be host:port with a port of 0 to 65535", address));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Exposer>> Exposer::Make(const std::string& address,
                                                       const Metrics& metrics) {
  if (absl::Status status = CheckAddress(address); !status.ok()) return status;
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(address);
    exposer->RegisterCollectable(metrics.registry());
    return std::unique_ptr<Exposer>(new Exposer(std::move(exposer)));
  } catch (const std::exception&) {
    // The library does not say which of these it was.
    return absl::UnavailableError(absl::StrFormat(
        "cannot listen on metrics address \"%s\": it is in use, not an address of this machine, "
        "or not permitted",
        address));
  }
}

Exposer::Exposer(std::unique_ptr<prometheus::Exposer> exposer) : exposer_(std::move(exposer)) {}
Exposer::~Exposer() = default;

int Exposer::port() const { return exposer_->GetListeningPorts().front(); }

}  // namespace condense
