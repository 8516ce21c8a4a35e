#ifndef CONDENSE_ENGINE_SEQUENCE_H_
#define CONDENSE_ENGINE_SEQUENCE_H_

// The engine's own state of one request: known and computed tokens, KV, sampling, text.

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "cache/compactor.h"
#include "cache/kv_cache.h"
#include "engine/probe/token_record.h"
#include "engine/request.h"
#include "engine/request_queue.h"
#include "engine/sampler.h"
#include "engine/text_cutter.h"
#include "engine/tokenizer/tokenizer.h"

namespace condense {

// There is no prefill mode: a sequence whose computed tokens are fewer than its known ones has rows
// to run, and the row of the last known token yields the next one. Preemption sets `computed` back
// to 0, nothing else. Threads: thread-compatible, owner is the engine thread.
class Sequence {
 public:
  enum class State : uint8_t { kWaiting, kRunning, kFinished };

  // `max_tokens`: the request's own limit or what the context leaves. `stop_tokens`: ids that end
  // it.
  Sequence(Submission submission, int32_t max_tokens, std::vector<TokenId> stop_tokens);

  const Request& request() const { return request_; }
  TokenStream* stream() const { return stream_.get(); }
  State state() const { return state_; }
  int64_t known() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t computed() const { return computed_; }
  const std::vector<TokenId>& tokens() const { return tokens_; }
  int64_t prompt_size() const { return static_cast<int64_t>(request_.prompt.size()); }
  // Whether the row at `position` needs logits: to choose the next token, or to score a prompt
  // token.
  bool NeedsLogits(int64_t position) const;
  SampleRow RowFor(int64_t position);

  // State transitions; the only places that change `state`.
  void Start(absl::Time now, std::unique_ptr<KvSequence> kv);
  std::unique_ptr<KvSequence> Preempt();  // back to waiting, everything is to be computed again
  std::unique_ptr<KvSequence> Finish();   // null if it never ran or was preempted

  // A step computed `count` tokens.
  void Computed(int64_t count) { computed_ += count; }
  // The result of a row with logits at `position`.
  void Take(int64_t position, const SampleResult& result, const Tokenizer& tokenizer,
            absl::Time now);
  // Set by Take when the request has ended by itself.
  bool ended() const { return ended_; }
  bool broken() const { return broken_; }  // a row was not finite

  // Moves what may be delivered into an event; false if there is nothing.
  bool Collect(TokenEvent* event);
  // The final event for an end by itself (`status` OK) or from outside.
  TokenEvent FinalEvent(FinishReason reason, absl::Status status, absl::Time now, Receipt receipt);
  FinishReason reason() const { return reason_; }

  KvSequence* kv() const { return kv_.get(); }
  // Null where nothing is compacted. Ends with the KV.
  SequenceCompaction* compaction() const { return compaction_.get(); }
  void SetCompaction(std::unique_ptr<SequenceCompaction> compaction) {
    compaction_ = std::move(compaction);
  }
  // What it generates is kept from here on, with the distributions. A preemption clears the record.
  void SetRecord(std::unique_ptr<TokenRecord> record) {
    sampler_.ReportAtLeast(record->num_top());
    record_ = std::move(record);
  }
  TokenRecord* record() const { return record_.get(); }  // null: nothing is kept
  absl::Time submitted() const { return submitted_; }
  absl::Time first_started() const { return first_started_; }
  absl::Time first_token() const { return first_token_; }
  absl::Time last_token() const { return last_token_; }
  bool ever_started() const { return first_started_ != absl::InfinitePast(); }
  int32_t generated() const { return sampler_.generated(); }
  int32_t preemptions() const { return preemptions_; }

 private:
  void Append(TokenOutput output, const Tokenizer& tokenizer);
  void End(FinishReason reason, std::optional<TokenId> stop_token, int32_t stop_index);
  void Deliver(const TextCut& cut);

  const Request request_;
  const std::shared_ptr<TokenStream> stream_;
  const absl::Time submitted_;
  const int32_t max_tokens_;
  const std::vector<TokenId> stop_tokens_;

  State state_ = State::kWaiting;
  std::vector<TokenId> tokens_;  // prompt and generated
  int64_t computed_ = 0;
  std::unique_ptr<KvSequence> kv_;
  std::unique_ptr<SequenceCompaction> compaction_;  // of kv_
  int32_t preemptions_ = 0;
  std::unique_ptr<TokenRecord> record_;

  Sampler sampler_;
  TextCutter cutter_;
  std::deque<TokenOutput> undelivered_;  // generated, their text still held back
  TokenEvent ready_;                     // cut, not yet collected
  int32_t delivered_tokens_ = 0;
  std::vector<float> prompt_logprobs_;

  bool ended_ = false;
  bool broken_ = false;
  FinishReason reason_ = FinishReason::kStop;
  std::optional<TokenId> stop_token_;
  std::string stop_string_;

  absl::Time first_started_ = absl::InfinitePast();
  absl::Time first_token_ = absl::InfinitePast();
  absl::Time last_token_ = absl::InfinitePast();
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_SEQUENCE_H_
