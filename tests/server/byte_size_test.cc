#include "server/byte_size.h"

#include <gtest/gtest.h>

namespace condense {
namespace {

int64_t Parse(const char* text) {
  ByteSize size;
  std::string error;
  if (AbslParseFlag(text, &size, &error)) return size.bytes;
  EXPECT_FALSE(error.empty());
  return -1;
}

TEST(ByteSizeTest, UnitsArePowersOfTwo) {
  EXPECT_EQ(Parse("0"), 0);
  EXPECT_EQ(Parse("12345"), 12345);
  EXPECT_EQ(Parse("64KiB"), 64 << 10);
  EXPECT_EQ(Parse("512MiB"), 512 << 20);
  EXPECT_EQ(Parse("4GiB"), int64_t{4} << 30);
  EXPECT_EQ(Parse("1.5GiB"), int64_t{3} << 29);
}

TEST(ByteSizeTest, AnythingElseIsRefused) {
  for (const char* text : {"", "GiB", "4GB", "-1", "1.5", "4 Gib", "nan", "inf", "1e30TiB"}) {
    EXPECT_EQ(Parse(text), -1) << text;
  }
}

TEST(ByteSizeTest, PrintsWhatItParses) {
  for (const char* text : {"0", "12345", "64KiB", "512MiB", "4GiB"}) {
    EXPECT_EQ(AbslUnparseFlag({Parse(text)}), text);
  }
}

}  // namespace
}  // namespace condense
