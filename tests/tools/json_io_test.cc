#include "tools/json_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace condense {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(JsonIoTest, ReadsTokenIds) {
  EXPECT_THAT(*ParseTokenIds(" [0, 5,\n7] ", 8), ElementsAre(0, 5, 7));
  EXPECT_TRUE(ParseTokenIds("[]", 8)->empty());
}

TEST(JsonIoTest, RefusesWhatIsNoArrayOfIds) {
  for (const char* bad : {"", "5", "{}", "[1,", "[1] 2", "null"}) {
    EXPECT_EQ(ParseTokenIds(bad, 8).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  for (const char* bad : {"[1, 8]", "[1, -1]", "[1, 1.5]", "[1, \"2\"]", "[1, null]", "[1, [2]]",
                          "[1, 18446744073709551615]", "[1, true]"}) {
    const absl::Status status = ParseTokenIds(bad, 8).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("element 1")) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("0 to 7")) << bad;
  }
  EXPECT_FALSE(ParseTokenIds("[4294967296]", 0).ok());
}

TEST(JsonIoTest, ReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(ToJsonText({{"k", "\xff"}}, false), "{\"k\":\"\xef\xbf\xbd\"}");
}

}  // namespace
}  // namespace condense
