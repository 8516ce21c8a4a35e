#ifndef CONDENSE_CACHE_COMPACTOR_H_
#define CONDENSE_CACHE_COMPACTOR_H_

// The engine's side of compaction: whose turn it is; jobs out, swaps in.

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "cache/allotter.h"
#include "cache/compaction_mailbox.h"
#include "cache/compactor_options.h"
#include "cache/kv_cache.h"
#include "cache/policy.h"
#include "cache/sequence_compaction.h"

namespace condense {

// What one settled job was like.
struct SettledJob {
  SwapOutcome outcome = SwapOutcome::kFailed;
  bool dropped = false;  // its sequence had ended
  SwapQuality quality;
  int32_t held_out_queries = 0;  // that `quality` is the mean of; 0: nothing was measured
  double plan_seconds = 0.0, build_seconds = 0.0, validate_seconds = 0.0;
  double cpu_seconds = 0.0;  // of the worker, all of it
  absl::Status status;
};

// Threads: thread-compatible, owner is the engine thread. Never waits but in Settle.
class Compactor {
 public:
  // All outlive the compactor, and the compactor outlives what Open returned.
  Compactor(KvCache* cache, CompactionMailbox* mailbox, CompactorOptions options);
  ~Compactor();  // REQUIRES: the worker is gone. Settles what is still out.

  // Null for a compression that changes nothing.
  std::unique_ptr<SequenceCompaction> Open(const Compression& compression, KvSequence* kv,
                                           int64_t prompt_tokens);

  // Every engine step: takes results out of the mailbox.
  void Collect();
  // Every engine step that ran the sequence and found its prompt computed. At its turn: swaps what
  // is back, posts what is due. At other steps: posts what found no place in the mailbox, and what
  // the prompt left. `urgent`: every step is a turn, ratios go beyond their target, and
  // what was compacted to it merges further, once.
  void Step(SequenceCompaction* sequence, bool urgent);
  // Running sequences stop compacting: results are still swapped in, nothing is posted.
  void set_paused(bool paused) { paused_ = paused; }
  // Targets and formats of all sequences are these notches from their own, from their next jobs on:
  // AtNotch.
  void set_notches(int32_t notches) { notches_ = notches; }

  // A turn of this sequence, with waiting, until nothing is left to do. Units that are refused try
  // again up to `retries` times, at the ratio that is left to them. For evaluation and tests.
  void Settle(SequenceCompaction* sequence, int retries);

  // Memory will come back without anybody's doing: a result is out or waits for its turn.
  bool relief_coming() const { return mailbox_->jobs_out() > 0 || num_waiting_results_ > 0; }
  // Waits for the next result, for an engine that has nothing else to do.
  void WaitForResult(absl::Duration timeout) { mailbox_->WaitForResult(timeout); }

  int32_t jobs_out() const { return mailbox_->jobs_out(); }
  // Since the last call.
  std::vector<SettledJob> TakeSettled() { return std::exchange(settled_, {}); }
  int64_t TakeNoReserve() { return std::exchange(no_reserve_, 0); }

 private:
  friend class SequenceCompaction;

  void Turn(SequenceCompaction* sequence, bool urgent);
  void SettleResults(SequenceCompaction* sequence);
  void SettleResult(SequenceCompaction* sequence, CompactionResult result);
  void Record(const CompactionResult& result, bool dropped);
  void PostJobs(SequenceCompaction* sequence, bool urgent);
  void PostDue(SequenceCompaction* sequence, bool urgent);
  // False if nothing can be posted any more in this turn.
  bool Post(SequenceCompaction* sequence, const Policy* policy, const RangeStorage& storage,
            const CompactionRange& range);
  void PostFurther(SequenceCompaction* sequence);
  // Of units whose pool is nearly at its cap.
  void PostEvictions(SequenceCompaction* sequence);
  bool CanPost(const SequenceCompaction& sequence, const CompactionRange& range) const;
  CompactionJob MakeJob(SequenceCompaction* sequence, const CompactionRange& range,
                        int32_t num_blocks) const;
  void Forget(SequenceCompaction* sequence);

  KvCache* const cache_;
  CompactionMailbox* const mailbox_;
  const CompactorOptions options_;
  const Allotter allotter_;
  absl::flat_hash_map<std::string_view, std::unique_ptr<const Policy>> policies_;
  bool paused_ = false;
  int32_t notches_ = 0;
  int32_t next_phase_ = 0;
  absl::flat_hash_map<KvTicket, SequenceCompaction*> out_;
  int32_t num_waiting_results_ = 0;
  std::vector<SettledJob> settled_;
  int64_t no_reserve_ = 0;
};

}  // namespace condense

#endif  // CONDENSE_CACHE_COMPACTOR_H_
