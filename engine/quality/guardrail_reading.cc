#include "engine/quality/guardrail_reading.h"

#include <cmath>

namespace condense {

std::optional<Reading> MeanReading(const SlidingMean& mean, absl::Time now, double confidence) {
  const std::optional<MeanEstimate> estimate = mean.Estimate(now);
  if (!estimate.has_value()) return std::nullopt;
  return Reading{.value = estimate->mean,
                 .samples = estimate->count,
                 .lower = estimate->LowerBound(confidence),
                 .upper = estimate->UpperBound(confidence)};
}

std::optional<Reading> ShareReading(const SlidingMean& share, absl::Time now, double confidence) {
  const std::optional<MeanEstimate> estimate = share.Estimate(now);
  if (!estimate.has_value()) return std::nullopt;
  return Reading{.value = estimate->mean,
                 .samples = estimate->count,
                 .lower = estimate->ShareLowerBound(confidence),
                 .upper = estimate->ShareUpperBound(confidence)};
}

std::optional<Reading> DriftReading(const SlidingMean& nats, absl::Time now, double confidence) {
  std::optional<Reading> reading = MeanReading(nats, now, confidence);
  if (!reading.has_value()) return std::nullopt;
  reading->value = std::expm1(reading->value);
  if (reading->lower.has_value()) reading->lower = std::expm1(*reading->lower);
  if (reading->upper.has_value()) reading->upper = std::expm1(*reading->upper);
  return reading;
}

std::optional<Reading> QuantileReading(const SlidingQuantile& quantile, double level,
                                       absl::Time now, double confidence) {
  const std::optional<double> value = quantile.Quantile(now, level);
  if (!value.has_value()) return std::nullopt;
  return Reading{.value = *value,
                 .samples = quantile.Count(now),
                 .lower = quantile.LowerBound(now, level, confidence),
                 .upper = quantile.UpperBound(now, level, confidence)};
}

}  // namespace condense
