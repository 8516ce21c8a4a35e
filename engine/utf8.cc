#include "engine/utf8.h"

#include <algorithm>
#include <cstdint>

namespace condense {
namespace {

// The length of the maximal ill-formed part at the front of `bytes`, and whether it is the
// beginning of a character that the bytes end in. REQUIRES: there is no whole character at the
// front.
struct IllFormed {
  size_t length;
  bool unfinished;
};

IllFormed Classify(std::string_view bytes) {
  const uint8_t lead = static_cast<uint8_t>(bytes[0]);
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  // A part grows while some completion makes it a character: the smallest and the largest
  // continuation are tried.
  const size_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  size_t length = 0;
  const auto completable = [&](size_t count) {
    std::string low(bytes.substr(0, count)), high = low;
    low.append(size - count, '\x80');
    high.append(size - count, '\xBF');
    return Utf8CharacterSize(low) == size || Utf8CharacterSize(high) == size;
  };
  while (length < std::min(size - 1, bytes.size()) && completable(length + 1)) ++length;
  return {length, length == bytes.size()};
}

}  // namespace

size_t IncompleteUtf8Suffix(std::string_view bytes) {
  for (size_t back = 1; back <= std::min<size_t>(3, bytes.size()); ++back) {
    const uint8_t byte = static_cast<uint8_t>(bytes[bytes.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const std::string_view tail = bytes.substr(bytes.size() - back);
    return Utf8CharacterSize(tail) == 0 && Classify(tail).unfinished ? back : 0;
  }
  return 0;
}

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    size_t size = Utf8CharacterSize(bytes);
    if (size > 0) {
      text.append(bytes.substr(0, size));
    } else {
      size = Classify(bytes).length;
      text.append("\xEF\xBF\xBD");
    }
    bytes.remove_prefix(size);
  }
  return text;
}

bool IsValidUtf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t size = Utf8CharacterSize(bytes);
    if (size == 0) return false;
    bytes.remove_prefix(size);
  }
  return true;
}

}  // namespace condense
