#include "tools/exit_code.h"

#include <cstdio>
#include <string>

#include "absl/strings/cord.h"
#include "tools/format.h"

namespace condense {
namespace {

constexpr char kRetryablePayload[] = "condense.tools/retryable";

}  // namespace

const char kExitCodeHelp[] =
    "Exit codes:\n"
    "  0    success\n"
    "  1    failed\n"
    "  2    bad usage, or a value that the server or the engine refuses\n"
    "  3    no server at the address, or the connection was lost\n"
    "  4    the server is full or draining: try again later\n"
    "  5    the time given by --timeout is over\n"
    "  130  interrupted by Ctrl-C";

void MarkRetryable(absl::Status* status) { status->SetPayload(kRetryablePayload, absl::Cord("1")); }

int ExitCodeFor(const absl::Status& status) {
  const bool retryable = status.GetPayload(kRetryablePayload).has_value();
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitTimeout;
    case absl::StatusCode::kUnavailable:
      return retryable ? kExitBusy : kExitUnreachable;
    case absl::StatusCode::kResourceExhausted:
      return retryable ? kExitBusy : kExitFailed;
    default:
      return kExitFailed;
  }
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "condense: %s: %s\n", absl::StatusCodeToString(status.code()).c_str(),
               WithoutControls(std::string(status.message())).c_str());
  return ExitCodeFor(status);
}

}  // namespace condense
