#include "metrics/log.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace condense {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class LogTest : public ::testing::Test {
 protected:
  void TearDown() override { ASSERT_TRUE(SetLogLevel("info").ok()); }
};

TEST_F(LogTest, RecordIsOneLineWithUtcTimeLevelThreadAndText) {
  ::testing::internal::CaptureStderr();
  LogInfo("request %s ended after %d tokens", std::string("r1"), 7);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              MatchesRegex("[0-9-]+T[0-9:]+\\.[0-9]+Z info [0-9]+ "
                           "request r1 ended after 7 tokens\n"));
}

TEST_F(LogTest, LevelsBelowTheChosenOneAreNotWritten) {
  ASSERT_TRUE(SetLogLevel("warning").ok());
  EXPECT_FALSE(LogEnabled(LogLevel::kInfo));
  ::testing::internal::CaptureStderr();
  LogDebug("at debug");
  LogInfo("at info");
  LogWarning("at warning");
  LogError("at error");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, Not(HasSubstr("at info")));
  EXPECT_THAT(text, Not(HasSubstr("at debug")));
  EXPECT_THAT(text, HasSubstr("warning "));
  EXPECT_THAT(text, HasSubstr("at warning"));
  EXPECT_THAT(text, HasSubstr("at error"));
}

TEST_F(LogTest, OffIsSilent) {
  ASSERT_TRUE(SetLogLevel("off").ok());
  ::testing::internal::CaptureStderr();
  LogError("at error");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_F(LogTest, UnknownLevelIsRefusedAndTheOldOneStays) {
  ASSERT_TRUE(SetLogLevel("error").ok());
  const absl::Status status = SetLogLevel("loud");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"loud\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("debug, info, warning, error or off"));
  EXPECT_FALSE(LogEnabled(LogLevel::kWarning));
  EXPECT_TRUE(LogEnabled(LogLevel::kError));
}

TEST_F(LogTest, ControlCharactersCannotForgeARecord) {
  ::testing::internal::CaptureStderr();
  LogInfo("id %s", std::string("a\n2026 error fake\x1b[31m"));
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("id a\\x0a2026 error fake\\x1b[31m\n"));
}

TEST_F(LogTest, BracesAndPercentInArgumentsAreText) {
  ::testing::internal::CaptureStderr();
  LogInfo("%s", std::string("{} {0} %d é"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("{} {0} %d é\n"));
}

}  // namespace
}  // namespace condense
