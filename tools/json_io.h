#ifndef CONDENSE_TOOLS_JSON_IO_H_
#define CONDENSE_TOOLS_JSON_IO_H_

// JSON and raw bytes on standard input and output.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/dtype.h"
#include "nlohmann/json.hpp"

namespace condense {

// All of standard input.
std::string ReadStandardInput();

// A JSON array of integers that are token ids of a vocabulary of `vocab_size` (0: any that fit).
// INVALID_ARGUMENT naming the place and what was found there.
absl::StatusOr<std::vector<TokenId>> ParseTokenIds(std::string_view json, int32_t vocab_size);

// Bytes that are not UTF-8 become U+FFFD.
std::string ToJsonText(const nlohmann::ordered_json& value, bool indented);

}  // namespace condense

#endif  // CONDENSE_TOOLS_JSON_IO_H_
