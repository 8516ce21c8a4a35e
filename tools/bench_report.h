#ifndef CONDENSE_TOOLS_BENCH_REPORT_H_
#define CONDENSE_TOOLS_BENCH_REPORT_H_

// What a load test measured: records of requests, and the table or JSON made of them.

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "tools/samples.h"

namespace condense {

// The life of one request as its client saw it.
// Threads: thread-compatible.
struct RequestRecord {
  absl::Time start;  // when it was due, so that waiting for a late client counts
  absl::Time first_token = absl::InfiniteFuture();
  absl::Time last_token = absl::InfiniteFuture();
  absl::Time end;
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t kv_bytes = 0, kv_bytes_16bit = 0;  // of its cache at the end, from the receipt
  Samples inter_token_seconds;               // one per token after the first
  absl::Status status;

  // `count` tokens came together at `now`; they share the time since the last ones.
  void AddTokens(int64_t count, absl::Time now);
};

// Threads: thread-compatible.
class BenchReport {
 public:
  void Add(const RequestRecord& record);
  int64_t finished() const { return finished_; }
  int64_t failed() const { return failed_; }
  int64_t generated_tokens() const { return generated_tokens_; }

  // `elapsed`: from the first request's start to the last one's end.
  std::string ToTable(absl::Duration elapsed) const;
  nlohmann::ordered_json ToJson(absl::Duration elapsed) const;

 private:
  int64_t finished_ = 0, failed_ = 0;
  int64_t prompt_tokens_ = 0;                  // of finished requests
  int64_t generated_tokens_ = 0;               // of all, partial ones included
  int64_t kv_bytes_ = 0, kv_bytes_16bit_ = 0;  // of finished requests
  double KvRatio() const;                      // of all their caches; 1 where nothing is known
  Samples ttft_, inter_token_, total_;
  std::map<std::string, int64_t> errors_;       // by code
  std::map<std::string, std::string> example_;  // one message of each code
};

}  // namespace condense

#endif  // CONDENSE_TOOLS_BENCH_REPORT_H_
