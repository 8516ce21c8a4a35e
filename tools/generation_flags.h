#ifndef CONDENSE_TOOLS_GENERATION_FLAGS_H_
#define CONDENSE_TOOLS_GENERATION_FLAGS_H_

// Flags that several subcommands share: the server to talk to, and how to sample and when to stop.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "condense/v1/inference.pb.h"
#include "tools/client.h"
#include "tools/compression_flags.h"

namespace condense {

struct ServerFlags {
  std::string address = "127.0.0.1:50051";
  double connect_timeout_seconds = 5.0;

  void AddTo(CLI::App* command);
  // See Client::Connect.
  absl::StatusOr<std::unique_ptr<Client>> Connect(
      absl::Duration call_timeout = Client::kDefaultCallTimeout) const;
};

// A flag that is not given stays unset in the request, so that the server's default holds. Ranges
// are the server's to check: it names field, value and limit.
struct GenerationFlags {
  std::optional<float> temperature, top_p, min_p;
  std::optional<float> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int32_t> top_k, max_tokens, min_tokens, priority;
  std::optional<uint64_t> seed;
  std::vector<std::string> logit_bias;  // ID=VALUE
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  std::string model, tenant;
  CompressionFlags compression;
  double timeout_seconds = 0;  // 0: none

  void AddTo(CLI::App* command);
  // Fills everything but the input. INVALID_ARGUMENT for a malformed --logit_bias.
  absl::Status Fill(v1::GenerateRequest* request) const;
  absl::Duration timeout() const;
};

}  // namespace condense

#endif  // CONDENSE_TOOLS_GENERATION_FLAGS_H_
