#ifndef CONDENSE_ENGINE_QUALITY_GUARDRAIL_READING_H_
#define CONDENSE_ENGINE_QUALITY_GUARDRAIL_READING_H_

// What guardrails are told: one number for each, or that there is none. docs/guardrails.md,
// "Readings".

#include <array>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "engine/quality/sliding_mean.h"
#include "engine/quality/sliding_quantile.h"

namespace condense {

enum class Guard : uint8_t {
  kHitRatio,           // mean over validated units; a share of 1
  kHitRatioTail,       // 5th percentile of the same
  kMergeLatency,       // AddedTime, in seconds, 99th percentile of cycles
  kMemoryFluctuation,  // MemoryFluctuation, 95th percentile of cycles
  kDrift,              // perplexity drift: exp(mean divergence) - 1
  kCanary,             // recall of planted facts, relative to the full cache
  kFirstToken,         // time to first token, compacted over uncompressed, - 1
  kMemory,             // peak use of the arena, a share of 1
  kTtft,               // seconds to the first token, 99th percentile of all requests
  kInterToken,         // seconds between two tokens of a request, 99th percentile
};
inline constexpr int kNumGuards = 10;

// A number and how sure it is. One-sided bounds with GuardrailLimits::confidence, where known.
struct Reading {
  double value = 0;
  int64_t samples = 0;
  std::optional<double> lower;
  std::optional<double> upper;
};

// Of one evaluation window. What was not measured is not there: it is neither 0 nor 1.
class Readings {
 public:
  std::optional<Reading>& operator[](Guard guard) { return all_[static_cast<size_t>(guard)]; }
  const std::optional<Reading>& operator[](Guard guard) const {
    return all_[static_cast<size_t>(guard)];
  }

 private:
  std::array<std::optional<Reading>, kNumGuards> all_;
};

// Each nothing if the window that ends at `now` is empty.
std::optional<Reading> MeanReading(const SlidingMean& mean, absl::Time now, double confidence);
// Of samples that are shares, weighted by their trials.
std::optional<Reading> ShareReading(const SlidingMean& share, absl::Time now, double confidence);
// Of samples that are mean nats of requests, weighted by their tokens: bounds and value as exp - 1.
std::optional<Reading> DriftReading(const SlidingMean& nats, absl::Time now, double confidence);
std::optional<Reading> QuantileReading(const SlidingQuantile& quantile, double level,
                                       absl::Time now, double confidence);

}  // namespace condense

#endif  // CONDENSE_ENGINE_QUALITY_GUARDRAIL_READING_H_
