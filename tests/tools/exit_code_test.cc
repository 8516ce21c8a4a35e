#include "tools/exit_code.h"

#include <gtest/gtest.h>

namespace condense {
namespace {

TEST(ExitCodeTest, TellsErrorsApart) {
  EXPECT_EQ(ExitCodeFor(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeFor(absl::InternalError("")), 1);
  EXPECT_EQ(ExitCodeFor(absl::DataLossError("")), 1);
  EXPECT_EQ(ExitCodeFor(absl::ResourceExhaustedError("")), 1);
  EXPECT_EQ(ExitCodeFor(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCodeFor(absl::UnavailableError("")), 3);
  EXPECT_EQ(ExitCodeFor(absl::DeadlineExceededError("")), 5);
}

TEST(ExitCodeTest, ARetryableErrorIsABusyServer) {
  absl::Status draining = absl::UnavailableError("");
  MarkRetryable(&draining);
  EXPECT_EQ(ExitCodeFor(draining), 4);
  absl::Status full = absl::ResourceExhaustedError("");
  MarkRetryable(&full);
  EXPECT_EQ(ExitCodeFor(full), 4);
}

}  // namespace
}  // namespace condense
