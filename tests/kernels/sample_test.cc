#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/kernels/backend_fixture.h"

namespace condense {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class SampleTest : public BackendFixture {
 protected:
  std::vector<SampleResult> Run(Backend* on, const std::vector<float>& logits,
                                const std::vector<SampleRow>& rows) {
    const DeviceArray<float> device(on, logits);
    std::vector<SampleResult> results(rows.size());
    SampleArgs args;
    args.logits = device.get();
    args.rows = static_cast<int32_t>(rows.size());
    args.vocab = static_cast<int32_t>(logits.size() / rows.size());
    args.params = rows.data();
    args.results = results.data();
    on->Sample(args);
    EXPECT_TRUE(on->Synchronize().ok());
    return results;
  }
  SampleResult RunOne(const std::vector<float>& logits, const SampleRow& row) {
    return Run(backend(), logits, {row})[0];
  }

  void ExpectMatch(const std::vector<float>& logits, const std::vector<SampleRow>& rows) {
    const std::vector<SampleResult> actual = Run(backend(), logits, rows);
    const std::vector<SampleResult> expected = Run(reference(), logits, rows);
    for (size_t r = 0; r < rows.size(); ++r) {
      SCOPED_TRACE(testing::Message()
                   << "row " << r << " temperature " << rows[r].temperature << " k "
                   << rows[r].top_k << " p " << rows[r].top_p << " min-p " << rows[r].min_p
                   << " uniform " << rows[r].uniform);
      EXPECT_EQ(actual[r].finite, expected[r].finite);
      EXPECT_EQ(actual[r].token, expected[r].token);
      EXPECT_NEAR(actual[r].logprob, expected[r].logprob,
                  2e-6 * std::abs(expected[r].logprob) + 1e-6);
      for (int i = 0; i < rows[r].num_top; ++i) {
        EXPECT_EQ(actual[r].top[i].token, expected[r].top[i].token);
        EXPECT_NEAR(actual[r].top[i].logprob, expected[r].top[i].logprob, 1e-5);
      }
    }
  }
};

// Logits as a model gives them: most far below a few.
std::vector<float> PeakedLogits(int64_t size, uint32_t seed) {
  std::vector<float> logits = RandomFloats(size, seed);
  for (float& logit : logits) logit *= 3.0f;
  return logits;
}

std::vector<SampleRow> Grid() {
  std::mt19937 random(5);
  std::vector<SampleRow> rows;
  for (const float temperature : {0.0f, 0.2f, 1.0f, 1.7f}) {
    for (const int top_k : {0, 1, 40, 700, 100000}) {
      for (const float top_p : {1.0f, 0.95f, 0.3f, 0.0f}) {
        for (const float min_p : {0.0f, 0.05f, 1.0f}) {
          SampleRow row;
          row.temperature = temperature;
          row.top_k = top_k;
          row.top_p = top_p;
          row.min_p = min_p;
          row.uniform = static_cast<double>(random()) / (1.0 + std::mt19937::max());
          row.num_top = static_cast<int>(rows.size()) % (kMaxTopLogprobs + 1);
          rows.push_back(row);
        }
      }
    }
  }
  return rows;
}

TEST_P(SampleTest, MatchesReferenceForEveryCombinationOfFilters) {
  const std::vector<SampleRow> rows = Grid();
  for (const int vocab : {1, 50, 1000}) {
    SCOPED_TRACE(testing::Message() << "V " << vocab);
    if (vocab < kMaxTopLogprobs) {
      std::vector<SampleRow> few = rows;
      for (SampleRow& row : few) row.num_top = std::min(row.num_top, vocab);
      ExpectMatch(PeakedLogits(int64_t{vocab} * static_cast<int64_t>(rows.size()), 3), few);
    } else {
      ExpectMatch(PeakedLogits(int64_t{vocab} * static_cast<int64_t>(rows.size()), 3), rows);
    }
  }
}

TEST_P(SampleTest, MatchesReferenceOverALargeVocabulary) {
  std::vector<SampleRow> rows;
  for (int i = 0; i < 24; ++i) {
    SampleRow row;
    row.temperature = i % 2 == 0 ? 1.0f : 0.8f;
    row.top_k = i % 3 == 0 ? 50 : 0;
    row.top_p = i % 4 == 0 ? 0.9f : 1.0f;
    row.min_p = i % 5 == 0 ? 0.02f : 0.0f;
    row.uniform = (i + 0.5) / 24;
    row.num_top = 5;
    rows.push_back(row);
  }
  ExpectMatch(PeakedLogits(int64_t{49152} * 24, 4), rows);
}

TEST_P(SampleTest, TiesGoToLowerIds) {
  // Every logit occurs 25 times, so that each cut goes through a tie.
  std::vector<float> logits(1000);
  for (int i = 0; i < 1000; ++i) logits[i] = static_cast<float>(i * 7 % 40) / 10.0f;
  for (const SampleRow& filter :
       {SampleRow{.temperature = 0.0f}, SampleRow{.temperature = 1.0f, .top_k = 30},
        SampleRow{.temperature = 1.0f, .top_p = 0.33f}}) {
    for (double uniform = 0.005; uniform < 1.0; uniform += 0.045) {
      SampleRow row = filter;
      row.uniform = uniform;
      row.num_top = kMaxTopLogprobs;
      ExpectMatch(logits, {row});
    }
  }
}

TEST_P(SampleTest, PenaltiesAndBiasMatchReference) {
  const std::vector<TokenCount> seen = {{3, 0}, {10, 1}, {11, 4}, {99, 2}};
  const std::vector<TokenBias> bias = {{0, 2.0f}, {5, -kInfinity}, {11, 1.0f}, {98, 100.0f}};
  const std::vector<float> logits = PeakedLogits(100, 6);
  for (const float temperature : {0.0f, 1.0f}) {
    for (const int num_bias : {0, 3, 4}) {
      for (double uniform = 0.01; uniform < 1.0; uniform += 0.05) {
        SampleRow row;
        row.temperature = temperature;
        row.repetition_penalty = 1.3f;
        row.presence_penalty = 0.7f;
        row.frequency_penalty = 0.4f;
        row.uniform = uniform;
        row.seen = seen.data();
        row.num_seen = static_cast<int32_t>(seen.size());
        row.bias = bias.data();
        row.num_bias = num_bias;
        row.num_top = 4;
        ExpectMatch(logits, {row});
      }
    }
  }
}

TEST_P(SampleTest, UniformWalksTheDistribution) {
  const std::vector<float> logits = {std::log(1.0f), std::log(2.0f), -kInfinity, std::log(1.0f)};
  const auto token_at = [&](double uniform) {
    return RunOne(logits, {.temperature = 1.0f, .uniform = uniform}).token;
  };
  EXPECT_EQ(token_at(0.0), 0);
  EXPECT_EQ(token_at(0.249), 0);
  EXPECT_EQ(token_at(0.251), 1);
  EXPECT_EQ(token_at(0.749), 1);
  EXPECT_EQ(token_at(0.751), 3);
  EXPECT_EQ(token_at(std::nextafter(1.0, 0.0)), 3);
}

TEST_P(SampleTest, TargetIsReportedWhateverTheFiltersSay) {
  const std::vector<float> logits = PeakedLogits(1000, 7);
  const TokenBias forbid = {400, -kInfinity};
  ExpectMatch(logits, {{.temperature = 0.5f,
                        .top_k = 1,
                        .target = 400,
                        .num_top = 3,
                        .bias = &forbid,
                        .num_bias = 1}});
}

TEST_P(SampleTest, TinyTemperatureEqualsGreedy) {
  const std::vector<float> logits = PeakedLogits(1000, 8);
  const TokenId greedy = RunOne(logits, {}).token;
  for (const float temperature : {1e-3f, 1e-30f, std::numeric_limits<float>::denorm_min()}) {
    EXPECT_EQ(RunOne(logits, {.temperature = temperature, .uniform = 0.99}).token, greedy);
    EXPECT_EQ(RunOne(logits, {.temperature = temperature, .top_p = 0.9f, .uniform = 0.99}).token,
              greedy);
  }
}

TEST_P(SampleTest, RowsWithoutAUsableLogitAreReported) {
  const std::vector<float> good = PeakedLogits(130, 9);
  for (const size_t at : {size_t{0}, size_t{77}, size_t{129}}) {
    for (const float bad : {static_cast<float>(NAN), kInfinity}) {
      std::vector<float> logits = good;
      logits[at] = bad;
      const SampleResult result = RunOne(logits, {.temperature = 1.0f, .target = 3});
      EXPECT_FALSE(result.finite);
      EXPECT_EQ(result.token, -1);
    }
  }
  EXPECT_FALSE(RunOne(std::vector<float>(130, -kInfinity), {}).finite);
  std::vector<float> one(130, -kInfinity);
  one[120] = -5.0f;
  const SampleResult result = RunOne(one, {.temperature = 1.0f, .uniform = 0.7});
  EXPECT_TRUE(result.finite);
  EXPECT_EQ(result.token, 120);
  EXPECT_EQ(result.logprob, 0.0f);
}

TEST_P(SampleTest, ForbiddingEveryTokenIsReported) {
  std::vector<TokenBias> bias;
  for (TokenId id = 0; id < 100; ++id) bias.push_back({id, -kInfinity});
  const std::vector<float> logits = PeakedLogits(100, 10);
  const SampleResult all =
      RunOne(logits, {.temperature = 1.0f, .bias = bias.data(), .num_bias = 100});
  EXPECT_FALSE(all.finite);
  EXPECT_EQ(all.token, -1);
  const SampleResult but_one =
      RunOne(logits, {.temperature = 1.0f, .bias = bias.data(), .num_bias = 99});
  EXPECT_TRUE(but_one.finite);
  EXPECT_EQ(but_one.token, 99);
}

TEST_P(SampleTest, ABadRowDoesNotHarmItsNeighbours) {
  std::vector<float> logits = PeakedLogits(300, 11);
  logits[150] = NAN;
  const std::vector<SampleResult> results = Run(backend(), logits, {{}, {}, {}});
  EXPECT_TRUE(results[0].finite);
  EXPECT_FALSE(results[1].finite);
  EXPECT_TRUE(results[2].finite);
}

TEST_P(SampleTest, LogprobsOfAllTokensSumToOne) {
  const std::vector<float> logits = PeakedLogits(200, 12);
  double sum = 0.0;
  for (TokenId id = 0; id < 200; ++id)
    sum += std::exp(double{RunOne(logits, {.target = id}).logprob});
  EXPECT_NEAR(sum, 1.0, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Backends, SampleTest, testing::ValuesIn(TestedBackends()),
                         BackendInstanceName);

}  // namespace
}  // namespace condense
