#include "server/field_check.h"

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace condense {

absl::Status CheckRange(const std::string& field, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();  // false for NaN
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %g; must be in [%g, %g]", field, value, low, high));
}

absl::Status CheckRangeAbove(const std::string& field, double value, double low, double high) {
  if (value > low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %g; must be in (%g, %g]", field, value, low, high));
}

absl::Status CheckIntRange(const std::string& field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %d; must be in [%d, %d]", field, value, low, high));
}

absl::Status CheckCount(const std::string& field, int64_t count, const char* unit, int64_t limit) {
  if (count <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s has %d %s; at most %d", field, count, unit, limit));
}

absl::Status CheckName(const std::string& field, const std::string& value, int64_t limit) {
  RETURN_IF_ERROR(CheckCount(field, static_cast<int64_t>(value.size()), "bytes", limit));
  for (size_t i = 0; i < value.size(); ++i) {
    const auto byte = static_cast<unsigned char>(value[i]);
    if (byte < 0x20 || byte == 0x7f) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s has the control character 0x%02x at byte %d; none is allowed", field, byte, i));
    }
  }
  return absl::OkStatus();
}

}  // namespace condense
