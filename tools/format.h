#ifndef CONDENSE_TOOLS_FORMAT_H_
#define CONDENSE_TOOLS_FORMAT_H_

// Numbers and text as people read them on a terminal.

#include <cstdint>
#include <string>
#include <string_view>

namespace condense {

std::string FormatBytes(int64_t bytes);     // "512 B", "96.1 MiB"
std::string FormatCount(int64_t count);     // "134,515,008"
std::string FormatSeconds(double seconds);  // "850 us", "12.3 ms", "4.21 s", "1 h 02 min"
std::string FormatNumber(double value);     // three significant digits or all before the point

// Text without what could steer a terminal: control characters other than newline and tab become
// U+FFFD. Expects UTF-8; other bytes pass.
std::string WithoutControls(std::string_view text);

// One line of at most `max_bytes` and an ellipsis; control characters and bytes that are not UTF-8
// are escaped as in C.
std::string OneLine(std::string_view text, size_t max_bytes);

}  // namespace condense

#endif  // CONDENSE_TOOLS_FORMAT_H_
