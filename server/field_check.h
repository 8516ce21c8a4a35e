#ifndef CONDENSE_SERVER_FIELD_CHECK_H_
#define CONDENSE_SERVER_FIELD_CHECK_H_

// Checks of single request fields. All errors are INVALID_ARGUMENT and name field, value and limit.

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace condense {

// "FIELD is VALUE; must be in [LOW, HIGH]". NaN and infinities are outside of every range.
absl::Status CheckRange(const std::string& field, double value, double low, double high);
// The same for (LOW, HIGH].
absl::Status CheckRangeAbove(const std::string& field, double value, double low, double high);
absl::Status CheckIntRange(const std::string& field, int64_t value, int64_t low, int64_t high);
// "FIELD has COUNT UNIT; at most LIMIT".
absl::Status CheckCount(const std::string& field, int64_t count, const char* unit, int64_t limit);
// At most `limit` bytes, and no control characters: what is logged or shown stays one line.
absl::Status CheckName(const std::string& field, const std::string& value, int64_t limit);

}  // namespace condense

#endif  // CONDENSE_SERVER_FIELD_CHECK_H_
