#ifndef CONDENSE_TOOLS_EXIT_CODE_H_
#define CONDENSE_TOOLS_EXIT_CODE_H_

// Exit codes of `condense`, and how an error becomes one.

#include "absl/status/status.h"

namespace condense {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitUnreachable = 3,
  kExitBusy = 4,
  kExitTimeout = 5,
  kExitInterrupted = 130,  // 128 + SIGINT, as shells have it
};
extern const char kExitCodeHelp[];

// Marks an error as an answer of the server that invites a later try: a full queue, a drain.
void MarkRetryable(absl::Status* status);

int ExitCodeFor(const absl::Status& status);

// Prints "condense: CODE: message" to stderr, control characters removed, and returns its exit
// code.
int Fail(const absl::Status& status);

}  // namespace condense

#endif  // CONDENSE_TOOLS_EXIT_CODE_H_
