#ifndef CONDENSE_TOOLS_TEXT_TABLE_H_
#define CONDENSE_TOOLS_TEXT_TABLE_H_

// Aligned columns of text for a terminal.

#include <string>
#include <vector>

namespace condense {

// Threads: thread-compatible.
class TextTable {
 public:
  enum class Align { kLeft, kRight };

  // A row may have fewer cells than there are columns; cells past the columns are left-aligned.
  explicit TextTable(std::vector<Align> columns) : columns_(std::move(columns)) {}
  void Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // Columns two spaces apart, no trailing spaces, each line after `indent` spaces.
  std::string ToString(int indent = 0) const;

 private:
  std::vector<Align> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace condense

#endif  // CONDENSE_TOOLS_TEXT_TABLE_H_
