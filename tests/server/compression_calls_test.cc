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
  EXPECT_EQ(info.schema_revision(), 3);
  v1::GenerateResponse response;
  ASSERT_TRUE(Generate(ShortRequest(3), &response).ok());
  EXPECT_EQ(response.receipt().mode(), "uncompressed");
  request.set_mode("auto");
  ASSERT_TRUE(Set(request).ok());
  ASSERT_TRUE(Generate(ShortRequest(3), &response).ok());
  EXPECT_EQ(response.receipt().mode(), "uncompressed");  // until the dwell is over
  EXPECT_THAT(Get().mode_reason(), HasSubstr("released"));
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
