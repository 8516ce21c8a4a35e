#include "engine/quality/sliding_mean.h"

#include <algorithm>
#include <cmath>

#include "engine/quality/confidence.h"

namespace condense {

void WeightedMoments::Add(double value, double weight) {
  WeightedMoments one;
  one.count_ = 1;
  one.weight_ = weight;
  one.mean_ = value;
  one.square_weight_ = weight * weight;
  one.square_mean_ = value;
  one.cube_weight_ = weight * weight * weight;
  Join(one);
}

void WeightedMoments::Join(const WeightedMoments& other) {
  if (other.count_ == 0) return;
  if (count_ == 0) {
    *this = other;
    return;
  }
  count_ += other.count_;
  weight_ += other.weight_;
  mean_ += (other.mean_ - mean_) * other.weight_ / weight_;
  const double before = square_weight_;
  square_weight_ += other.square_weight_;
  const double apart = other.square_mean_ - square_mean_;
  square_mean_ += apart * other.square_weight_ / square_weight_;
  square_spread_ +=
      other.square_spread_ + apart * apart * before * other.square_weight_ / square_weight_;
  cube_weight_ += other.cube_weight_;
}

double WeightedMoments::EffectiveCount() const {
  return count_ == 0 ? 0 : weight_ * weight_ / square_weight_;
}

double WeightedMoments::MeanVariance() const {
  if (count_ < 2) return 0;
  // sum w^2 (x - mean)^2 / (sum w)^2 is too small, because the mean lies amid its own samples. For
  // samples of equal variance v its expectation is v (s2 - 2 s3 + s2^2) where v s2 is wanted, s_k
  // being the sum of k-th powers of the shares of weight. For equal weights that is n / (n - 1).
  const double apart = square_mean_ - mean_;
  const double total = square_spread_ + square_weight_ * apart * apart;
  const double s2 = square_weight_ / (weight_ * weight_);
  const double s3 = cube_weight_ / (weight_ * weight_ * weight_);
  const double seen = s2 - 2 * s3 + s2 * s2;
  return seen <= 0 ? 0 : total / (weight_ * weight_) * s2 / seen;
}

std::optional<double> MeanEstimate::LowerBound(double confidence) const {
  if (!standard_error.has_value() || effective_count < 2) return std::nullopt;
  return mean - StudentQuantile(confidence, effective_count - 1) * *standard_error;
}

std::optional<double> MeanEstimate::UpperBound(double confidence) const {
  if (!standard_error.has_value() || effective_count < 2) return std::nullopt;
  return mean + StudentQuantile(confidence, effective_count - 1) * *standard_error;
}

double MeanEstimate::EffectiveTrials(double confidence) const {
  const double spread = mean * (1 - mean);
  if (!standard_error.has_value() || effective_count < 2 || spread <= 0) {
    return std::min(effective_count, weight);
  }
  const double most = std::max(weight, effective_count);
  const double variance = *standard_error * *standard_error;
  if (variance * most <= spread) return most;
  // Few samples estimate their own spread badly: as Student's t is to the normal quantile.
  const double wide = StudentQuantile(confidence, effective_count - 1);
  const double narrow = StudentQuantile(confidence, 1e5);
  return std::max(spread / variance * narrow * narrow / (wide * wide), 1.0);
}

double MeanEstimate::ShareLowerBound(double confidence) const {
  const double trials = EffectiveTrials(confidence);
  return condense::ShareLowerBound(std::clamp(mean, 0.0, 1.0) * trials, trials, confidence);
}

double MeanEstimate::ShareUpperBound(double confidence) const {
  const double trials = EffectiveTrials(confidence);
  return condense::ShareUpperBound(std::clamp(mean, 0.0, 1.0) * trials, trials, confidence);
}

bool SlidingMean::Add(absl::Time time, double value, double weight) {
  if (!std::isfinite(value) || !std::isfinite(weight) || weight <= 0) return false;
  WeightedMoments* bucket = ring_.At(time);
  if (bucket == nullptr) return false;
  bucket->Add(value, weight);
  return true;
}

std::optional<MeanEstimate> SlidingMean::Estimate(absl::Time now) const {
  WeightedMoments all;
  ring_.ForEach(now, [&all](const WeightedMoments& bucket) { all.Join(bucket); });
  if (all.count() == 0) return std::nullopt;
  MeanEstimate estimate{.count = all.count(),
                        .weight = all.weight(),
                        .mean = all.mean(),
                        .effective_count = all.EffectiveCount()};
  if (all.count() >= 2) estimate.standard_error = std::sqrt(all.MeanVariance());
  return estimate;
}

}  // namespace condense
