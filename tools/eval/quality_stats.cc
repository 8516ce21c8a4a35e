#include "tools/eval/quality_stats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "kernels/base/check.h"
#include "tools/samples.h"

namespace condense {
namespace {

constexpr int64_t kBlockTokens = 32;
constexpr int kResamples = 2000;
constexpr uint64_t kSeed = 20;
// Loops over rows keep this many partial results, so that the compiler may use vectors without
// being allowed to reorder sums.
constexpr int32_t kLanes = 8;
// So many logits are added in float before the sum goes on in double.
constexpr int32_t kStretch = 4 * kLanes;

// exp(x) for x <= 0, within 2e-7 of the result; below -87 it is exp(-87). Made of operations that
// every vector unit has, because the library's exp would take most of the time of an evaluation.
inline float ExpOfNonPositive(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  // Among negative floats the order of the bits as integers is that of the magnitudes; comparing
  // floats would be a branch to the compiler.
  const int32_t bits = std::bit_cast<int32_t>(x) | std::numeric_limits<int32_t>::min();
  const float clamped = std::bit_cast<float>(std::min(bits, std::bit_cast<int32_t>(-87.0f)));
  const float shifted = clamped * 1.44269504f + kShift;
  const float n = shifted - kShift;
  const float f = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  float p = 1.9875691500e-4f;
  p = p * f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1.0f;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kShift);
  return p * std::bit_cast<float>((exponent + 127) << 23);
}

// The largest logit, or NaN where one is not finite.
float LargestFinite(const float* row, int32_t vocab) {
  float largest[kLanes], poison[kLanes] = {};
  std::fill(largest, largest + kLanes, row[0]);
  const int32_t whole = vocab - vocab % kLanes;
  for (int32_t i = 0; i < whole; i += kLanes) {
    for (int32_t j = 0; j < kLanes; ++j) {
      largest[j] = row[i + j] > largest[j] ? row[i + j] : largest[j];
      poison[j] += row[i + j] * 0.0f;
    }
  }
  float result = *std::max_element(largest, largest + kLanes);
  float poisoned = 0.0f;
  for (const float p : poison) poisoned += p;
  for (int32_t i = whole; i < vocab; ++i) {
    result = std::max(result, row[i]);
    poisoned += row[i] * 0.0f;
  }
  return result + poisoned;
}

// Sums over the vocabulary, exponents relative to the largest logit of each row.
struct RowSums {
  double reference = 0.0;  // of exp(a)
  double cell = 0.0;       // of exp(b)
  double weighted = 0.0;   // of exp(a) (a - b)
};

RowSums SumRows(const float* reference, float reference_top, const float* cell, float cell_top,
                int32_t vocab) {
  double sum_a[kLanes] = {}, sum_b[kLanes] = {}, sum_ab[kLanes] = {};
  const int32_t whole = vocab - vocab % kStretch;
  for (int32_t first = 0; first < whole; first += kStretch) {
    float part_a[kLanes] = {}, part_b[kLanes] = {}, part_ab[kLanes] = {};
    for (int32_t i = first; i < first + kStretch; i += kLanes) {
      for (int32_t j = 0; j < kLanes; ++j) {
        const float a = reference[i + j] - reference_top;
        const float b = cell[i + j] - cell_top;
        const float exp_a = ExpOfNonPositive(a);
        part_a[j] += exp_a;
        part_b[j] += ExpOfNonPositive(b);
        part_ab[j] += exp_a * (a - b);
      }
    }
    for (int32_t j = 0; j < kLanes; ++j) sum_a[j] += part_a[j];
    for (int32_t j = 0; j < kLanes; ++j) sum_b[j] += part_b[j];
    for (int32_t j = 0; j < kLanes; ++j) sum_ab[j] += part_ab[j];
  }
  RowSums sums;
  for (int32_t j = 0; j < kLanes; ++j) {
    sums.reference += sum_a[j];
    sums.cell += sum_b[j];
    sums.weighted += sum_ab[j];
  }
  for (int32_t i = whole; i < vocab; ++i) {
    const float a = reference[i] - reference_top;
    const float b = cell[i] - cell_top;
    sums.reference += ExpOfNonPositive(a);
    sums.cell += ExpOfNonPositive(b);
    sums.weighted += ExpOfNonPositive(a) * (a - b);
  }
  return sums;
}

double PercentFromLog(double log_ratio) { return 100.0 * std::expm1(log_ratio); }

}  // namespace

QualityStats::QualityStats(int32_t vocab) : vocab_(vocab) { CHECK_GE(vocab, 1); }

void QualityStats::StartDocument() { blocks_.emplace_back(); }

bool QualityStats::Add(const float* reference, const float* cell, TokenId target) {
  CHECK_GE(target, 0);
  CHECK_LT(target, vocab_);
  const float reference_top = LargestFinite(reference, vocab_);
  const float cell_top = LargestFinite(cell, vocab_);
  if (!std::isfinite(reference_top) || !std::isfinite(cell_top)) return false;

  const RowSums sums = SumRows(reference, reference_top, cell, cell_top, vocab_);
  const double log_reference = std::log(sums.reference), log_cell = std::log(sums.cell);
  // Never negative but for rounding.
  kld_.push_back(std::max(0.0, sums.weighted / sums.reference - log_reference + log_cell));
  const double reference_nll = log_reference - (double{reference[target]} - reference_top);
  const double cell_nll = log_cell - (double{cell[target]} - cell_top);
  nll_ += cell_nll;
  nll_delta_ += cell_nll - reference_nll;
  const auto place = [&](const float* row, float top) { return std::find(row, row + vocab_, top); };
  same_top1_ += place(reference, reference_top) - reference == place(cell, cell_top) - cell;

  if (blocks_.empty() || blocks_.back().tokens == kBlockTokens) blocks_.emplace_back();
  blocks_.back().nll_delta += cell_nll - reference_nll;
  ++blocks_.back().tokens;
  return true;
}

Interval QualityStats::Bootstrap() const {
  std::mt19937_64 random(kSeed);
  Samples deltas;
  for (int i = 0; i < kResamples; ++i) {
    Block sum;
    for (size_t k = 0; k < blocks_.size(); ++k) {
      const Block& drawn = blocks_[random() % blocks_.size()];
      sum.nll_delta += drawn.nll_delta;
      sum.tokens += drawn.tokens;
    }
    // Only blocks that a document had just begun may be empty.
    if (sum.tokens > 0) deltas.Add(sum.nll_delta / static_cast<double>(sum.tokens));
  }
  return {PercentFromLog(deltas.Percentile(0.025)), PercentFromLog(deltas.Percentile(0.975))};
}

Quality QualityStats::Summary() const {
  Quality quality{.tokens = static_cast<int64_t>(kld_.size())};
  if (quality.tokens == 0) return quality;
  const double tokens = static_cast<double>(quality.tokens);
  Samples kld;
  for (const double value : kld_) kld.Add(value);
  quality.ppl = std::exp(nll_ / tokens);
  quality.ppl_delta_pct = PercentFromLog(nll_delta_ / tokens);
  quality.ppl_delta_ci = Bootstrap();
  quality.kld_mean = kld.Mean();
  quality.kld_median = kld.Median();
  quality.kld_p99 = kld.Percentile(0.99);
  quality.top1 = static_cast<double>(same_top1_) / tokens;
  return quality;
}

TokenId ArgMax(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double DistinctShare(std::span<const TokenId> tokens, int32_t n) {
  CHECK_GE(n, 1);
  const int64_t runs = static_cast<int64_t>(tokens.size()) - n + 1;
  if (runs <= 0) return 1.0;
  std::set<std::vector<TokenId>> distinct;
  for (int64_t i = 0; i < runs; ++i) {
    distinct.emplace(tokens.begin() + i, tokens.begin() + i + n);
  }
  return static_cast<double>(distinct.size()) / static_cast<double>(runs);
}

}  // namespace condense
