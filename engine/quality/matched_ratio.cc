#include "engine/quality/matched_ratio.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/quality/confidence.h"

namespace condense {
namespace {

constexpr int32_t kClasses = 21;  // up to a million tokens

double Square(double x) { return x * x; }

// A weighted sum of independent means, and what Welch's approximation needs of it.
struct WelchSum {
  double weight = 0;
  double sum = 0;
  double variance = 0;     // of sum
  double uncertainty = 0;  // sum of (part of variance)^2 / its degrees of freedom

  void AddVariance(double weight, const MeanEstimate& mean) {
    const double part = Square(weight * *mean.standard_error);
    variance += part;
    uncertainty += Square(part) / static_cast<double>(mean.count - 1);
  }
  double Degrees() const { return uncertainty > 0 ? Square(variance) / uncertainty : 1; }
};

}  // namespace

MatchedRatio::MatchedRatio(absl::Duration window)
    : classes_(kClasses, Class{SlidingMean(window), SlidingMean(window)}) {}

bool MatchedRatio::Add(absl::Time time, bool compacted, int64_t length, double seconds) {
  if (length <= 0 || !(seconds > 0)) return false;
  const int32_t logarithm = std::bit_width(static_cast<uint64_t>(length)) - 1;
  Class& similar = classes_[static_cast<size_t>(std::min(logarithm, kClasses - 1))];
  return (compacted ? similar.compacted : similar.uncompressed).Add(time, std::log(seconds));
}

std::optional<Reading> MatchedRatio::Estimate(absl::Time now, double confidence) const {
  WelchSum all;
  int64_t pairs = 0;
  for (const Class& similar : classes_) {
    const std::optional<MeanEstimate> a = similar.compacted.Estimate(now);
    const std::optional<MeanEstimate> b = similar.uncompressed.Estimate(now);
    if (!a.has_value() || !b.has_value() || a->count < 2 || b->count < 2) continue;
    // As the variance of a class would have it if single requests varied alike in all.
    const double counts_a = static_cast<double>(a->count);
    const double counts_b = static_cast<double>(b->count);
    const double weight = counts_a * counts_b / (counts_a + counts_b);
    all.weight += weight;
    all.sum += weight * (a->mean - b->mean);
    all.AddVariance(weight, *a);
    all.AddVariance(weight, *b);
    pairs += std::min(a->count, b->count);
  }
  if (pairs == 0) return std::nullopt;
  const double mean = all.sum / all.weight;
  const double margin = StudentQuantile(confidence, std::max(all.Degrees(), 1.0)) *
                        std::sqrt(all.variance) / all.weight;
  return Reading{.value = std::expm1(mean),
                 .samples = pairs,
                 .lower = std::expm1(mean - margin),
                 .upper = std::expm1(mean + margin)};
}

void MatchedRatio::Clear() {
  for (Class& similar : classes_) {
    similar.compacted.Clear();
    similar.uncompressed.Clear();
  }
}

}  // namespace condense
