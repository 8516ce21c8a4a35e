// Admin.SetCompression and GetCompression, and what requests then get.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/server/server_fixture.h"

namespace condense {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CompressionCallsTest : public ServerTest {
 protected:
  void StartCompacting(EngineConfig config = {}) {
    config.compaction.enabled = true;
    Start(config);
  }

  grpc::Status Set(const v1::SetCompressionRequest& request) {
    grpc::ClientContext context;
    v1::SetCompressionResponse response;
    const grpc::Status status = admin_->SetCompression(&context, request, &response);
    // The answer is what a question would be answered with.
    if (status.ok()) {
      EXPECT_EQ(response.state().preset(), Get().preset());
      EXPECT_EQ(response.state().paused(), Get().paused());
    }
    return status;
  }

  v1::CompressionState Get() {
    grpc::ClientContext context;
    v1::GetCompressionResponse response;
    EXPECT_TRUE(admin_->GetCompression(&context, {}, &response).ok());
    return response.state();
  }

  std::string Mode() {
    grpc::ClientContext context;
    v1::GetServerInfoResponse response;
    EXPECT_TRUE(info_->GetServerInfo(&context, {}, &response).ok());
    return response.compression_mode();
  }
};

TEST_F(CompressionCallsTest, AnEngineOfItsOwnIsUncompressed) {
  Start();
  const v1::CompressionState state = Get();
  EXPECT_EQ(state.preset(), "off");
  EXPECT_EQ(state.policy(), "none");
  EXPECT_EQ(state.ratio(), 1.0);
  EXPECT_EQ(state.formats_size(), 0);
  EXPECT_FALSE(state.paused());
  EXPECT_EQ(state.mode(), "uncompressed");
  EXPECT_EQ(state.ratio_held(), 1.0);
  EXPECT_EQ(Mode(), "uncompressed");
}

TEST_F(CompressionCallsTest, WhatIsSetIsWhatIsToldUntilTheNextChange) {
  StartCompacting();
  v1::SetCompressionRequest request;
  request.mutable_compression()->set_preset("light");
  ASSERT_TRUE(Set(request).ok());
  EXPECT_EQ(Get().preset(), "light");
  EXPECT_THAT(Get().formats(), ElementsAre("k6v4"));
  EXPECT_EQ(Get().mode(), "compacting");
  EXPECT_EQ(Mode(), "compacting");

  request.Clear();
  request.mutable_compression()->set_policy("similarity");
  request.mutable_compression()->set_ratio(5.0);
  ASSERT_TRUE(Set(request).ok());
  EXPECT_EQ(Get().preset(), "custom");
  EXPECT_EQ(Get().policy(), "similarity");
  EXPECT_EQ(Get().ratio(), 5.0);
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(info_->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.compression_preset(), "custom");
  EXPECT_EQ(info.compression_policy(), "similarity");
  EXPECT_EQ(info.compression_ratio(), 5.0);

  request.Clear();
  request.mutable_compression()->set_preset("off");
  ASSERT_TRUE(Set(request).ok());
  EXPECT_EQ(Get().mode(), "uncompressed");
}

TEST_F(CompressionCallsTest, APauseLeavesTheRestAsItIs) {
  EngineConfig config;
  config.compression = MakeCompression("lossless").value();
  StartCompacting(config);
  EXPECT_EQ(Get().mode(), "compacting");
  v1::SetCompressionRequest request;
  request.set_paused(true);
  ASSERT_TRUE(Set(request).ok());
  EXPECT_TRUE(engine_->compaction_paused());
  EXPECT_EQ(Get().mode(), "holding");
  EXPECT_EQ(Get().preset(), "lossless");
  EXPECT_EQ(Mode(), "holding");
  request.set_paused(false);
  ASSERT_TRUE(Set(request).ok());
  EXPECT_FALSE(engine_->compaction_paused());
  EXPECT_EQ(Get().mode(), "compacting");
}

TEST_F(CompressionCallsTest, ARefusalChangesNothing) {
  Start();
  v1::SetCompressionRequest request;
  request.set_paused(true);
  request.mutable_compression()->set_ratio(1e308);
  grpc::Status status = Set(request);
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "compression.ratio is 1e+308; must be in [1, 16]");
  EXPECT_FALSE(Get().paused());
  EXPECT_EQ(Get().preset(), "off");

  status = Set({});
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("compression.preset"));
  request.Clear();
  request.mutable_compression();
  EXPECT_EQ(Set(request).error_code(), grpc::INVALID_ARGUMENT);
}

TEST_F(CompressionCallsTest, AModeIsForcedToldAndReleased) {
  EngineConfig config;
  config.guard = true;
  config.compression = MakeCompression("balanced").value();
  StartCompacting(config);
  EXPECT_EQ(Get().mode(), "compacting");
  EXPECT_EQ(Get().mode_reason(), "nothing has been measured yet");
  v1::SetCompressionRequest request;
  request.set_mode("uncompressed");
  ASSERT_TRUE(Set(request).ok());
  EXPECT_EQ(Get().mode(), "uncompressed");
  EXPECT_EQ(Mode(), "uncompressed");
  EXPECT_THAT(Get().mode_reason(), HasSubstr("an operator forced"));
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(info_->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.compression_mode_reason(), Get().mode_reason());
  EXPECT_EQ(info.schema_revision(), 4);
  v1::GenerateResponse response;
  ASSERT_TRUE(Generate(ShortRequest(3), &response).ok());
  EXPECT_EQ(response.receipt().mode(), "uncompressed");
  request.set_mode("auto");
  ASSERT_TRUE(Set(request).ok());
  ASSERT_TRUE(Generate(ShortRequest(3), &response).ok());
  EXPECT_EQ(response.receipt().mode(), "uncompressed");  // until the dwell is over
  EXPECT_THAT(Get().mode_reason(), HasSubstr("released"));
}

TEST_F(CompressionCallsTest, EveryGuardrailIsListedWithWhatItMayRead) {
  EngineConfig config;
  config.guard_limits.drift.warning = 0.005;
  StartCompacting(config);
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(info_->GetServerInfo(&context, {}, &info).ok());
  ASSERT_EQ(info.guard_readings_size(), kNumGuards);
  for (int i = 0; i < kNumGuards; ++i) {
    const v1::GuardReading& reading = info.guard_readings(i);
    EXPECT_EQ(reading.guard(), TraitsOf(static_cast<Guard>(i)).label);
    EXPECT_EQ(reading.samples(), 0);
    EXPECT_FALSE(reading.has_value() || reading.has_lower() || reading.has_upper());
    EXPECT_EQ(reading.level(), "clear");
  }
  const v1::GuardReading& drift = info.guard_readings(static_cast<int>(Guard::kDrift));
  EXPECT_EQ(drift.guard(), "drift");
  EXPECT_EQ(drift.warning(), 0.005);
  EXPECT_EQ(drift.limit(), config.guard_limits.drift.limit);
  EXPECT_EQ(drift.min_samples(), config.guard_limits.drift.min_samples);
}

TEST_F(CompressionCallsTest, WhatTheGuardReadsIsTold) {
  EngineConfig config;
  config.guard = true;
  config.guard_limits.evaluation_window = absl::Milliseconds(100);
  // How far the arena is filled is read in every window.
  config.guard_limits.memory.warning = 0;
  config.guard_limits.hysteresis = 0;
  config.guard_limits.warning_windows = 1;
  config.compression = MakeCompression("balanced").value();
  StartCompacting(config);
  const auto memory = [this] {
    grpc::ClientContext context;
    v1::GetServerInfoResponse info;
    EXPECT_TRUE(info_->GetServerInfo(&context, {}, &info).ok());
    return info.guard_readings(static_cast<int>(Guard::kMemory));
  };
  const absl::Time until = absl::Now() + absl::Seconds(60);
  v1::GuardReading reading = memory();
  while (reading.samples() == 0 && absl::Now() < until) {
    v1::GenerateResponse response;
    ASSERT_TRUE(Generate(ShortRequest(80), &response).ok());
    reading = memory();
  }
  EXPECT_GT(reading.samples(), 0);
  EXPECT_GT(reading.value(), 0);
  EXPECT_LE(reading.value(), 1);
  EXPECT_EQ(reading.level(), "warning");
}

TEST_F(CompressionCallsTest, AModeThatIsNoneOrHasNoGuardChangesNothing) {
  StartCompacting();
  v1::SetCompressionRequest request;
  request.set_paused(true);
  request.set_mode("probation");
  grpc::Status status = Set(request);
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("mode is \"probation\"; must be one of"));
  request.set_mode("holding");
  status = Set(request);
  EXPECT_EQ(status.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("without guard"));
  EXPECT_FALSE(Get().paused());
  EXPECT_EQ(Get().mode_reason(), "");
}

TEST_F(CompressionCallsTest, AReceiptTellsTheMode) {
  Start();
  v1::SetCompressionRequest request;
  request.set_paused(true);
  ASSERT_TRUE(Set(request).ok());
  v1::GenerateResponse response;
  ASSERT_TRUE(Generate(ShortRequest(3), &response).ok());
  EXPECT_EQ(response.receipt().mode(), "holding");
  EXPECT_EQ(response.receipt().preset(), "off");
  EXPECT_EQ(response.receipt().min_hit_ratio(), 1.0);
  EXPECT_EQ(response.receipt().max_output_error(), 0.0);
}

TEST_F(CompressionCallsTest, ARequestWithABadCompressionIsRefused) {
  Start();
  v1::GenerateRequest request = ShortRequest(3);
  request.mutable_compression()->set_preset("tiny");
  const grpc::Status status = Stream(request).status;
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("compression.preset is \"tiny\""));
  request.mutable_compression()->set_preset("off");
  EXPECT_TRUE(Stream(request).status.ok());
}

TEST_F(CompressionCallsTest, AnEngineWithoutCompactionRefusesIt) {
  Start();
  v1::SetCompressionRequest change;
  change.mutable_compression()->set_preset("light");
  EXPECT_EQ(Set(change).error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_EQ(Get().preset(), "off");
  v1::GenerateRequest request = ShortRequest(3);
  request.mutable_compression()->set_preset("light");
  const grpc::Status status = Stream(request).status;
  EXPECT_EQ(status.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("compression.preset is \"light\""));
}

TEST_F(CompressionCallsTest, ACompactedRequestEndsWithItsOwnReceipt) {
  StartCompacting();
  v1::GenerateRequest request = ShortRequest(3);
  request.mutable_compression()->set_preset("light");
  v1::GenerateResponse response;
  ASSERT_TRUE(Generate(request, &response).ok());
  EXPECT_EQ(response.receipt().preset(), "light");
  EXPECT_EQ(response.receipt().policy(), "none");
  EXPECT_EQ(response.receipt().mode(), "uncompressed");  // of requests that do not ask
  v1::ScoreRequest score;
  score.set_text("hello world");
  grpc::ClientContext context;
  v1::ScoreResponse scored;
  ASSERT_TRUE(inference_->Score(&context, score, &scored).ok());
  EXPECT_EQ(scored.receipt().preset(), "off");
}

TEST_F(CompressionCallsTest, TheEngineChecksForItself) {
  Start();
  Compression compression;
  compression.ratio = 0.5;
  EXPECT_TRUE(absl::IsInvalidArgument(engine_->SetCompression(compression)));
  Request request;
  request.id = "r";
  request.prompt = {1};
  request.compression = compression;
  const absl::Status refused = engine_->Submit(request).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("ratio is 0.5; must be in 1..16"));
}

}  // namespace
}  // namespace condense
