#include "tools/eval/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace condense {
namespace {

using ::testing::HasSubstr;

std::string ReadAll(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(OutputFileTest, TheCheckLeavesEverythingAsItIs) {
  const std::string path = ::testing::TempDir() + "/output_file_test.txt";
  std::filesystem::remove(path);
  EXPECT_TRUE(CheckWritable("--json", path).ok());
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE(WriteFile(path, "old").ok());
  EXPECT_TRUE(CheckWritable("--json", path).ok());
  EXPECT_EQ(ReadAll(path), "old");
  ASSERT_TRUE(WriteFile(path, "n").ok());
  EXPECT_EQ(ReadAll(path), "n");
  std::filesystem::remove(path);
}

TEST(OutputFileTest, NamesTheFlagAndThePath) {
  const absl::Status status = CheckWritable("--html", "/no/such/folder/page.html");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--html"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/folder/page.html"));
  EXPECT_FALSE(CheckWritable("--html", ::testing::TempDir()).ok());
  EXPECT_FALSE(WriteFile("/no/such/folder/page.html", "x").ok());
}

}  // namespace
}  // namespace condense
