#ifndef CONDENSE_TOOLS_COMPRESSION_FLAGS_H_
#define CONDENSE_TOOLS_COMPRESSION_FLAGS_H_

// The flags --preset, --policy and --ratio, for a request to a server or for an engine of one's
// own.

#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "condense/v1/common.pb.h"
#include "engine/config.h"

namespace condense {

// Names and ranges are checked by who makes a compression of them: the server, or MakeCompression.
struct CompressionFlags {
  std::optional<std::string> preset, policy;
  std::optional<double> ratio;

  // `unset`: what holds without the flags, for --help.
  void AddTo(CLI::App* command, const std::string& unset);
  bool given() const { return preset || policy || ratio; }
  // Only what was given.
  v1::Compression ToMessage() const;
  // Nothing given: uncompressed. Without a preset, policy and ratio change `balanced`, as in a
  // server. INVALID_ARGUMENT naming flag, value and what is allowed.
  absl::StatusOr<Compression> Make() const;
};

}  // namespace condense

#endif  // CONDENSE_TOOLS_COMPRESSION_FLAGS_H_
