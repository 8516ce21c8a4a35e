#include "tools/text_table.h"

#include <gtest/gtest.h>

namespace condense {
namespace {

using Align = TextTable::Align;

TEST(TextTableTest, AlignsColumnsAndLeavesNoTrailingSpaces) {
  TextTable table({Align::kLeft, Align::kRight});
  table.Add({"name", "1"});
  table.Add({"n", "1234", "note"});
  EXPECT_EQ(table.ToString(), "name     1\nn     1234  note\n");
}

TEST(TextTableTest, CountsCharactersAndNotBytes) {
  TextTable table({Align::kLeft, Align::kLeft});
  table.Add({"\xc3\xa9\xc3\xa9", "x"});
  table.Add({"abc", "y"});
  EXPECT_EQ(table.ToString(1), " \xc3\xa9\xc3\xa9   x\n abc  y\n");
}

TEST(TextTableTest, OfNoRowsIsEmpty) { EXPECT_EQ(TextTable({Align::kLeft}).ToString(2), ""); }

}  // namespace
}  // namespace condense
