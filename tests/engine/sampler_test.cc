#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace condense {
namespace {

Request MakeRequest() {
  Request request;
  request.prompt = {5, 6, 5};
  request.sampling.seed = 42;
  return request;
}

TEST(SamplerTest, RandomnessDependsOnSeedAndIndexAlone) {
  Request request = MakeRequest();
  Sampler a(request, {}), b(request, {});
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(a.Row().uniform, b.Row().uniform);
    a.Accept(i);
    b.Accept(100 + i);
  }
  request.sampling.seed = 43;
  EXPECT_NE(Sampler(request, {}).Row().uniform, Sampler(MakeRequest(), {}).Row().uniform);
}

TEST(SamplerTest, UniformsAreSpreadOverTheUnitInterval) {
  Sampler sampler(MakeRequest(), {});
  double sum = 0;
  std::set<double> values;
  for (int i = 0; i < 10000; ++i) {
    const double u = sampler.Row().uniform;
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    values.insert(u);
    sampler.Accept(0);
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.015);
  EXPECT_EQ(values.size(), 10000u);
}

TEST(SamplerTest, StopTokensAreForbiddenUntilMinTokens) {
  Request request = MakeRequest();
  request.stop.min_tokens = 2;
  request.sampling.logit_bias = {{9, 3.0f}, {7, 2.0f}};
  Sampler sampler(request, {7});
  for (int i = 0; i < 2; ++i) {
    const SampleRow row = sampler.Row();
    ASSERT_EQ(row.num_bias, 2);
    EXPECT_EQ(row.bias[0].token, 9);
    EXPECT_EQ(row.bias[1].token, 7);
    EXPECT_TRUE(std::isinf(row.bias[1].bias));
    sampler.Accept(1);
  }
  const SampleRow row = sampler.Row();
  ASSERT_EQ(row.num_bias, 2);
  EXPECT_EQ(row.bias[1].bias, 2.0f);
}

TEST(SamplerTest, ABiasOfMinusHundredForbids) {
  Request request = MakeRequest();
  request.sampling.logit_bias = {{3, -100.0f}, {4, -99.0f}};
  Sampler sampler(request, {});
  const SampleRow row = sampler.Row();
  EXPECT_TRUE(std::isinf(row.bias[0].bias));
  EXPECT_EQ(row.bias[1].bias, -99.0f);
}

TEST(SamplerTest, SeenTokensAreCountedOnlyWhereAPenaltyReadsThem) {
  Request request = MakeRequest();
  EXPECT_EQ(Sampler(request, {}).Row().num_seen, 0);
  request.sampling.frequency_penalty = 0.5f;
  Sampler sampler(request, {});
  EXPECT_EQ(sampler.Row().num_seen, 2);  // 5 and 6 of the prompt
  sampler.Accept(6);
  sampler.Accept(8);
  sampler.Accept(8);
  const SampleRow row = sampler.Row();
  ASSERT_EQ(row.num_seen, 3);
  EXPECT_EQ(row.seen[0].generated, 0);
  EXPECT_EQ(row.seen[1].generated, 1);
  EXPECT_EQ(row.seen[2].token, 8);
  EXPECT_EQ(row.seen[2].generated, 2);
}

TEST(SamplerTest, ForcedTokensAreTargetsUntilTheyRunOut) {
  Request request = MakeRequest();
  request.forced = {9, 3, 9};
  Sampler sampler(request, {}), free(MakeRequest(), {});
  for (const TokenId token : request.forced) {
    EXPECT_EQ(sampler.Row().target, token);
    EXPECT_EQ(sampler.Row().target, token);  // asking does not advance
    EXPECT_EQ(free.Row().target, -1);
    sampler.Accept(token);
    free.Accept(token);
  }
  // From there on as if nothing had been forced.
  EXPECT_EQ(sampler.Row().target, -1);
  EXPECT_EQ(sampler.Row().uniform, free.Row().uniform);
}

TEST(SamplerTest, ForcedTokensAreSeenByPenalties) {
  Request request = MakeRequest();
  request.sampling.presence_penalty = 0.5f;
  request.forced = {8};
  Sampler sampler(request, {});
  sampler.Accept(8);
  EXPECT_EQ(sampler.Row().num_seen, 3);
}

TEST(SamplerTest, AlternativesAreThoseAskedForOrMoreWhereSomeoneElseReadsThem) {
  Request request = MakeRequest();
  EXPECT_EQ(Sampler(request, {}).Row().num_top, 0);
  request.num_logprobs = 7;
  Sampler sampler(request, {});
  EXPECT_EQ(sampler.Row().num_top, 7);
  sampler.ReportAtLeast(5);
  EXPECT_EQ(sampler.Row().num_top, 7);
  sampler.ReportAtLeast(20);
  EXPECT_EQ(sampler.Row().num_top, 20);
  sampler.ReportAtLeast(10);
  EXPECT_EQ(sampler.Row().num_top, 20);
  EXPECT_EQ(sampler.ScoreRow(4).num_top, 0);
}

}  // namespace
}  // namespace condense
