#ifndef CONDENSE_TESTS_SERVER_LIMITS_PAGE_H_
#define CONDENSE_TESTS_SERVER_LIMITS_PAGE_H_

// The tables of docs/limits.md.

#include <string>
#include <vector>

namespace condense {

// The cells of the table under "## heading", without its head and without backquotes.
std::vector<std::vector<std::string>> LimitsTable(const std::string& heading);

}  // namespace condense

#endif  // CONDENSE_TESTS_SERVER_LIMITS_PAGE_H_
