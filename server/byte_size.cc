#include "server/byte_size.h"

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace condense {
namespace {

struct Unit {
  const char* suffix;
  int64_t bytes;
};

// Largest first. Also what a size is printed in.
constexpr Unit kUnits[] = {{"TiB", int64_t{1} << 40},
                           {"GiB", int64_t{1} << 30},
                           {"MiB", int64_t{1} << 20},
                           {"KiB", int64_t{1} << 10}};

}  // namespace

bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string* error) {
  absl::string_view number = text;
  int64_t unit_bytes = 1;
  for (const Unit& unit : kUnits) {
    if (absl::ConsumeSuffix(&number, unit.suffix)) {
      unit_bytes = unit.bytes;
      break;
    }
  }
  double count = 0;
  const bool parsed = absl::SimpleAtod(number, &count);
  const double bytes = count * static_cast<double>(unit_bytes);
  if (!parsed || !(bytes >= 0) || bytes > 0x1p62 || bytes != std::floor(bytes)) {
    *error = "must be a number of bytes, or a number with KiB, MiB, GiB or TiB, as in 4GiB";
    return false;
  }
  size->bytes = static_cast<int64_t>(bytes);
  return true;
}

std::string AbslUnparseFlag(ByteSize size) {
  for (const Unit& unit : kUnits) {
    if (size.bytes != 0 && size.bytes % unit.bytes == 0) {
      return absl::StrCat(size.bytes / unit.bytes, unit.suffix);
    }
  }
  return absl::StrCat(size.bytes);
}

}  // namespace condense
