#ifndef CONDENSE_ENGINE_SAMPLER_H_
#define CONDENSE_ENGINE_SAMPLER_H_

// One request's sampling state: what the Sample op needs to know about the row.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/request.h"
#include "kernels/op_args.h"

namespace condense {

// Randomness is a function of (seed, index of the generated token): the same after a preemption,
// and whatever else is in the batch. Threads: thread-compatible, owner is the engine thread.
class Sampler {
 public:
  // `stop_tokens`: forbidden while fewer than min_tokens were generated.
  Sampler(const Request& request, const std::vector<TokenId>& stop_tokens);

  // The next row. Its pointers hold until the next call of a method of this sampler.
  SampleRow Row();
  // The row that scores `target` instead of choosing.
  SampleRow ScoreRow(TokenId target) const;
  void Accept(TokenId token);
  int32_t generated() const { return generated_; }
  // Rows report at least so many alternatives from now on.
  void ReportAtLeast(int32_t num_top) { num_top_ = std::max(num_top_, num_top); }

 private:
  void Count(TokenId token, int32_t generated);

  const SamplingParams sampling_;
  int32_t num_top_;
  const int32_t min_tokens_;
  const std::vector<TokenId> forced_;
  const bool counts_;  // a penalty is on, so that tokens are counted

  std::vector<TokenBias> bias_;            // with stop tokens forbidden
  std::vector<TokenBias> bias_when_free_;  // after min_tokens
  std::vector<TokenCount> seen_;
  absl::flat_hash_map<TokenId, size_t> seen_index_;
  int32_t generated_ = 0;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_SAMPLER_H_
