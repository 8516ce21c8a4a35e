#ifndef CONDENSE_ENGINE_PROBE_TOKEN_RECORD_H_
#define CONDENSE_ENGINE_PROBE_TOKEN_RECORD_H_

// The newest tokens that a sequence generated, with the heads of the distributions they came from,
// and what a probe of them found.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "kernels/op_args.h"

namespace condense {

// Threads: thread-compatible. Copies share `drift`.
class TokenRecord {
 public:
  // Keeps the last `capacity` results, each with `num_top` alternatives, at most kMaxTopLogprobs.
  // `since`: when the sequence started.
  TokenRecord(int32_t capacity, int32_t num_top, absl::Time since)
      : capacity_(capacity), num_top_(num_top), since_(since) {}

  void Add(const SampleResult& result) {
    if (size() == capacity_) results_.pop_front();
    results_.push_back(result);
    ++added_;
  }
  void Clear() { results_.clear(); }

  int32_t size() const { return static_cast<int32_t>(results_.size()); }
  // Of the kept ones, oldest first.
  const SampleResult& at(int32_t index) const { return results_[index]; }
  int32_t num_top() const { return num_top_; }
  int64_t added() const { return added_; }  // ever
  absl::Time since() const { return since_; }
  // Nats per token; nothing before a probe has ended.
  std::optional<double> drift() const { return *drift_; }
  void set_drift(double nats) const { *drift_ = nats; }

 private:
  const int32_t capacity_;
  const int32_t num_top_;
  const absl::Time since_;
  const std::shared_ptr<std::optional<double>> drift_ = std::make_shared<std::optional<double>>();
  std::deque<SampleResult> results_;
  int64_t added_ = 0;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_PROBE_TOKEN_RECORD_H_
