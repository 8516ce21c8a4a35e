#include "tools/json_io.h"

#include <iostream>
#include <iterator>
#include <limits>

#include "absl/strings/str_format.h"
#include "tools/format.h"

namespace condense {
namespace {

constexpr size_t kShownBytes = 40;

}  // namespace

std::string ReadStandardInput() {
  return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
}

absl::StatusOr<std::vector<TokenId>> ParseTokenIds(std::string_view json, int32_t vocab_size) {
  const auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_array()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "expected a JSON array of token ids, got \"%s\"", OneLine(json, kShownBytes)));
  }
  const int64_t limit = vocab_size > 0 ? vocab_size : std::numeric_limits<TokenId>::max();
  std::vector<TokenId> ids;
  ids.reserve(parsed.size());
  for (const auto& element : parsed) {
    const bool integer = element.is_number_integer();
    const bool beyond =
        element.is_number_unsigned() && element.get<uint64_t>() >= static_cast<uint64_t>(limit);
    if (!integer || beyond || element.get<int64_t>() < 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("element %d of the array is %s; token ids are integers from 0 to %d",
                          ids.size(), OneLine(ToJsonText(element, false), kShownBytes), limit - 1));
    }
    ids.push_back(element.get<TokenId>());
  }
  return ids;
}

std::string ToJsonText(const nlohmann::ordered_json& value, bool indented) {
  return value.dump(indented ? 2 : -1, ' ', /*ensure_ascii=*/false,
                    nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace condense
