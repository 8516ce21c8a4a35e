#ifndef CONDENSE_TOOLS_SERVER_STATUS_H_
#define CONDENSE_TOOLS_SERVER_STATUS_H_

// All that a server says about itself at one moment.

#include <string>

#include "absl/status/statusor.h"
#include "condense/v1/info.pb.h"
#include "nlohmann/json.hpp"
#include "tools/client.h"

namespace condense {

struct ServerStatus {
  v1::GetServerInfoResponse server;
  v1::GetModelInfoResponse model;
  v1::GetLoadResponse load;
};

absl::StatusOr<ServerStatus> AskStatus(Client* client);

// Members server, model and load.
nlohmann::ordered_json StatusToJson(const ServerStatus& status);

// "serving", "draining", "stalled".
std::string StateName(v1::GetServerInfoResponse::State state);
// "holding: hit ratio 0.93 is below ..."; the mode alone where there is no reason.
std::string DescribeMode(const std::string& mode, const std::string& reason);

}  // namespace condense

#endif  // CONDENSE_TOOLS_SERVER_STATUS_H_
