#ifndef CONDENSE_SERVER_BYTE_SIZE_H_
#define CONDENSE_SERVER_BYTE_SIZE_H_

// A flag type for sizes of memory: "4GiB", "512MiB", "64KiB", "1.5GiB" or a number of bytes.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace condense {

struct ByteSize {
  int64_t bytes = 0;
};

// What absl's flags call, found by argument-dependent lookup.
bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string* error);
std::string AbslUnparseFlag(ByteSize size);

}  // namespace condense

#endif  // CONDENSE_SERVER_BYTE_SIZE_H_
