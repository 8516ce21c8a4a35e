#ifndef CONDENSE_TOOLS_TEXT_WIDTH_H_
#define CONDENSE_TOOLS_TEXT_WIDTH_H_

// Text measured and fitted in terminal cells.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace condense {

// Code points, close enough to terminal cells for what these tools show.
size_t TextWidth(std::string_view text);

// At most `width` cells; an ellipsis takes the place of what is cut off.
std::string CutToWidth(std::string_view text, size_t width);

// Lines of at most `width` cells, broken at spaces, inside of words only where one is longer.
// REQUIRES: width >= 1. At least one line.
std::vector<std::string> WrapToWidth(std::string_view text, size_t width);

}  // namespace condense

#endif  // CONDENSE_TOOLS_TEXT_WIDTH_H_
