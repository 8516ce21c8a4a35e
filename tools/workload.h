#ifndef CONDENSE_TOOLS_WORKLOAD_H_
#define CONDENSE_TOOLS_WORKLOAD_H_

// The requests of a load test: when each starts, its random prompt, and its length. A seed fixes
// all.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/dtype.h"

namespace condense {

// Inclusive bounds, drawn from evenly.
struct LengthRange {
  int32_t low = 0;
  int32_t high = 0;
};
// "128" or "64-256", each at least 1. INVALID_ARGUMENT naming `flag` otherwise.
absl::StatusOr<LengthRange> ParseLengthRange(const std::string& flag, const std::string& text);

enum class Arrivals : uint8_t { kFixed, kPoisson };

// English text whose tokens are safe to feed to any model: no special ones among them.
extern const char kPlainText[];

struct WorkloadItem {
  std::vector<TokenId> prompt;
  int32_t output_tokens = 0;
};

// Threads: thread-compatible.
class Workload {
 public:
  // Prompts are drawn from `pool`, which must not be empty.
  Workload(std::vector<TokenId> pool, LengthRange prompt, LengthRange output, uint64_t seed);
  WorkloadItem Next();
  // Time until the next arrival at `rate` requests per second.
  absl::Duration NextGap(double rate, Arrivals arrivals);

 private:
  const std::vector<TokenId> pool_;
  const LengthRange prompt_, output_;
  // Two streams of numbers, so that the same requests come whatever their rhythm.
  std::mt19937_64 content_, rhythm_;
};

}  // namespace condense

#endif  // CONDENSE_TOOLS_WORKLOAD_H_
