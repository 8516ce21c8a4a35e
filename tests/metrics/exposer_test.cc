#include "metrics/exposer.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "metrics/metrics.h"
#include "tests/metrics/documented_metrics.h"

namespace condense {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The whole answer, headers first; empty if nobody listens.
std::string HttpGet(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request =
        absl::StrFormat("GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    char buffer[4096];
    for (ssize_t n; (n = recv(fd, buffer, sizeof(buffer), 0)) > 0;) answer.append(buffer, n);
  }
  close(fd);
  return answer;
}

// One exposer for the suite: each takes 2 s to stop.
class ExposerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    metrics_ = new Metrics("tiny");
    absl::StatusOr<std::unique_ptr<Exposer>> made = Exposer::Make("127.0.0.1:0", *metrics_);
    ASSERT_TRUE(made.ok()) << made.status();
    exposer_ = std::move(*made).release();
  }
  static void TearDownTestSuite() {
    delete exposer_;
    delete metrics_;
  }

  static inline Metrics* metrics_ = nullptr;
  static inline Exposer* exposer_ = nullptr;
};

TEST_F(ExposerTest, ServesTheMetricsOnTheFreePortThatItTook) {
  ASSERT_GT(exposer_->port(), 0);
  metrics_->generated_tokens.Increment(41);
  const std::string answer = HttpGet(exposer_->port(), "/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(answer, HasSubstr("condense_generated_tokens_total{model=\"tiny\"} 41\n"));
}

TEST_F(ExposerTest, OtherPathsAreNotFound) {
  EXPECT_THAT(HttpGet(exposer_->port(), "/etc/passwd"), StartsWith("HTTP/1.1 404"));
}

TEST_F(ExposerTest, EveryServedFamilyIsOnThePage) {
  std::stringstream page;
  page << std::ifstream(CONDENSE_METRICS_PAGE).rdbuf();
  const MetricRows served = ParseExposition(HttpGet(exposer_->port(), "/metrics"));
  ASSERT_TRUE(served.contains("condense_ttft_seconds"));
  for (const auto& [name, row] : served) EXPECT_THAT(page.str(), HasSubstr("`" + name + "`"));
}

TEST_F(ExposerTest, AddressInUseIsReportedWithTheAddress) {
  const std::string address = absl::StrFormat("127.0.0.1:%d", exposer_->port());
  const absl::Status status = Exposer::Make(address, *metrics_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(address));
}

TEST_F(ExposerTest, MalformedAddressesAreRefusedWithTheForm) {
  for (const char* address : {"", "9464", ":9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536",
                              "127.0.0.1:-1", "127.0.0.1:80s", "127.0.0.1:0,127.0.0.1:0"}) {
    const absl::Status status = Exposer::Make(address, *metrics_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(status.message()), HasSubstr("host:port"));
  }
}

}  // namespace
}  // namespace condense
