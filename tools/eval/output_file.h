#ifndef CONDENSE_TOOLS_EVAL_OUTPUT_FILE_H_
#define CONDENSE_TOOLS_EVAL_OUTPUT_FILE_H_

// Files that a long run writes at its end.

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace condense {

// Whether `path` could be written, asked before the work begins; leaves no new file behind and an
// old one as it is. INVALID_ARGUMENT naming flag, path and reason.
absl::Status CheckWritable(const std::string& flag, const std::string& path);

// INTERNAL naming path and reason; the file may then be incomplete.
absl::Status WriteFile(const std::string& path, std::string_view text);

}  // namespace condense

#endif  // CONDENSE_TOOLS_EVAL_OUTPUT_FILE_H_
