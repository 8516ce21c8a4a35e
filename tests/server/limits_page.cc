#include "tests/server/limits_page.h"

#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace condense {

std::vector<std::vector<std::string>> LimitsTable(const std::string& heading) {
  std::ifstream in(CONDENSE_LIMITS_PAGE);
  EXPECT_TRUE(in.good()) << CONDENSE_LIMITS_PAGE;
  std::vector<std::vector<std::string>> rows;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("## ", 0) == 0) inside = line == "## " + heading;
    if (!inside || line.rfind("| ", 0) != 0) continue;
    std::vector<std::string> cells;
    for (absl::string_view cell : absl::StrSplit(line, '|')) {
      cells.push_back(absl::StrReplaceAll(absl::StripAsciiWhitespace(cell), {{"`", ""}}));
    }
    rows.emplace_back(cells.begin() + 1, cells.end() - 1);
  }
  EXPECT_GT(rows.size(), 1u) << heading;
  if (!rows.empty()) rows.erase(rows.begin());
  return rows;
}

}  // namespace condense
