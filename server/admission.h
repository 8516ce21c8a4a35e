#ifndef CONDENSE_SERVER_ADMISSION_H_
#define CONDENSE_SERVER_ADMISSION_H_

// The way of a call into the engine: what gRPC knows of it, submission, and what is said, counted
// and logged when it is refused.

#include <grpcpp/server_context.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/service_context.h"

namespace condense {

absl::Time CallDeadline(const grpc::CallbackServerContext& call);
// The metadata entry x-request-id, or nothing.
std::string CallRequestId(const grpc::CallbackServerContext& call);

// True if the deadline ended the call, not the client. The engine then ends the request by itself,
// so that it is counted as late and not as cancelled.
bool DeadlineEnded(absl::Time deadline);

// Counts and logs a request that was refused before the engine saw it.
void CountInvalid(const ServiceContext& context, const absl::Status& status);

// Submits. A refusal that may be over soon carries RetryAfter.
absl::StatusOr<std::shared_ptr<TokenStream>> Admit(const ServiceContext& context, Request request);

}  // namespace condense

#endif  // CONDENSE_SERVER_ADMISSION_H_
