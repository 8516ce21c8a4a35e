#include "tools/text_width.h"

#include <algorithm>

namespace condense {
namespace {

bool BeginsCodePoint(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }

// Bytes of the first `width` code points.
size_t BytesOf(std::string_view text, size_t width) {
  size_t i = 0;
  for (; i < text.size(); ++i) {
    if (BeginsCodePoint(text[i]) && width-- == 0) break;
  }
  return i;
}

// Bytes of the line that `text` begins with.
size_t LineEnd(std::string_view text, size_t width) {
  const size_t most = BytesOf(text, width);
  if (most == text.size()) return most;
  const size_t space = text.rfind(' ', most);
  return space == std::string_view::npos || space == 0 ? most : space;
}

}  // namespace

size_t TextWidth(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), BeginsCodePoint));
}

std::string CutToWidth(std::string_view text, size_t width) {
  if (TextWidth(text) <= width) return std::string(text);
  if (width == 0) return "";
  return std::string(text.substr(0, BytesOf(text, width - 1))) + "\xe2\x80\xa6";
}

std::vector<std::string> WrapToWidth(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  do {
    const size_t end = LineEnd(text, width);
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  } while (!text.empty());
  return lines;
}

}  // namespace condense
