#ifndef CONDENSE_SERVER_CONVERT_STATUS_H_
#define CONDENSE_SERVER_CONVERT_STATUS_H_

// absl::Status -> grpc::Status, with the advice when to try again.

#include <grpcpp/support/status.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace condense {

// Attaches to an error the advice to try again after `delay`.
void SetRetryAfter(absl::Duration delay, absl::Status* status);
std::optional<absl::Duration> RetryAfter(const absl::Status& status);

// Codes map by value. RetryAfter becomes google.rpc.RetryInfo in the trailer
// grpc-status-details-bin.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace condense

#endif  // CONDENSE_SERVER_CONVERT_STATUS_H_
