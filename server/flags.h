#ifndef CONDENSE_SERVER_FLAGS_H_
#define CONDENSE_SERVER_FLAGS_H_

// The command line of `condensed`.

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/config.h"
#include "server/server.h"

namespace condense {

struct CommandLine {
  EngineConfig engine;
  ServerOptions server;
  std::string metrics_listen;  // empty: no metrics endpoint
  std::string log_level;
};

// Reads flags, --flagfile among them. --help and --version print and exit with 0; an unknown flag
// or an illegal value is reported and ends the process with exit status 2. INVALID_ARGUMENT naming
// flag, value and limit for values that no single flag can judge.
absl::StatusOr<CommandLine> ParseCommandLine(int argc, char** argv);

}  // namespace condense

#endif  // CONDENSE_SERVER_FLAGS_H_
