#ifndef CONDENSE_CACHE_COMPACTOR_H_
#define CONDENSE_CACHE_COMPACTOR_H_

// The engine's side of compaction: which units, when, how far; jobs out, swaps in.

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "cache/budget.h"
#include "cache/compaction_mailbox.h"
#include "cache/compression.h"
#include "cache/kv_cache.h"
#include "cache/merge_curves.h"
#include "cache/query_log.h"

namespace condense {

struct CompactorOptions {
  int32_t swap_every = 8;            // steps of a sequence from one turn to the next
  int32_t window_tokens = 64;        // the newest: never compacted
  int32_t grace_tokens = 16;         // the newest: not even ranked
  int32_t num_sinks = 4;             // the first: kept; in whole blocks, as their block is
  int32_t min_blocks = 2;            // a unit waits for so many blocks to compact at once
  int32_t group = 1;                 // H/G
  std::vector<bool> centred_layers;  // [L]: a mean key is known
  MergeCurves merge_curves;          // what units have in common with themselves, as far as known
  std::vector<float> recall;         // [L * G] how well a unit finds facts again; empty: unknown
  // How full the pool must be, for policies that mark and fold by importance.
  double mark_at = 0.40, soft_limit = 0.70, hard_limit = 0.90;
  double drop_share = 0.10;
};

// What one settled job was like.
struct SettledJob {
  SwapOutcome outcome = SwapOutcome::kFailed;
  bool dropped = false;  // its sequence had ended
  SwapQuality quality;
  double plan_seconds = 0.0, build_seconds = 0.0, validate_seconds = 0.0;
  absl::Status status;
};

class Compactor;

// One sequence's part. Dies with the sequence's cache, before its Release or after.
class SequenceCompaction {
 public:
  ~SequenceCompaction();
  SequenceCompaction(const SequenceCompaction&) = delete;
  SequenceCompaction& operator=(const SequenceCompaction&) = delete;

  const Compression& compression() const { return compression_; }
  QueryLog* query_log() { return &query_log_; }
  int64_t swaps_accepted() const { return swaps_accepted_; }
  int64_t swaps_refused() const { return swaps_refused_; }
  double min_hit_ratio() const { return min_hit_ratio_; }        // of accepted swaps; 1 without any
  double max_output_error() const { return max_output_error_; }  // of accepted swaps
  int32_t jobs_out() const { return jobs_out_; }

 private:
  friend class Compactor;
  struct Unit {
    int32_t cool_down = 0;        // turns until it may try again
    int32_t next_cool_down = 1;   // doubles with every refusal
    double distance_share = 1.0;  // of what others may merge or drop, lowered by refusals
    double curve_entries = 0.0;   // what the curves let the job that is out leave
  };

  SequenceCompaction(Compactor* compactor, Compression compression, const Policy* policy,
                     KvSequence* kv, QueryLog query_log, int32_t phase);

  Compactor* const compactor_;
  const Compression compression_;
  const Policy* const policy_;
  KvSequence* const kv_;
  QueryLog query_log_;
  int32_t steps_;                          // since the last turn; starts with the phase
  int32_t next_unit_ = 0;                  // where the round robin goes on
  std::vector<Unit> units_;                // [L * G]
  std::vector<CompactionResult> results_;  // back, waiting for the turn
  int32_t jobs_out_ = 0;                   // posted, their results not yet in results_
  int64_t swaps_accepted_ = 0;
  int64_t swaps_refused_ = 0;
  double min_hit_ratio_ = 1.0;
  double max_output_error_ = 0.0;
  // Over all jobs that merged: what the curves said would be left, and what was.
  double curve_entries_ = 0.0;
  double left_entries_ = 0.0;
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
  // is back, posts what is due. `urgent`: every step is a turn, and ratios go beyond their target.
  void Step(SequenceCompaction* sequence, bool urgent);
  // Running sequences stop compacting: results are still swapped in, nothing is posted.
  void set_paused(bool paused) { paused_ = paused; }

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
  // Blocks of a unit that may be compacted.
  struct Range {
    int32_t unit = 0;
    int32_t first = 0;
    int32_t num = 0;
    bool plain_front = true;  // nothing before it was compacted
  };
  // What a sequence may spend on its ranges at one turn.
  struct Allotment {
    KvFormat format = KvFormat::kK16V16;
    bool merges = false;  // entries must go, the format is not enough
    double cosine = 1.0;  // for policies that merge what is alike
    double share = 1.0;   // of the entries that stay, for the other policies
    Budget budget;
  };
  // One range's part of it.
  struct Storage;

  void Turn(SequenceCompaction* sequence, bool urgent);
  void SettleResults(SequenceCompaction* sequence);
  void SettleResult(SequenceCompaction* sequence, CompactionResult result);
  void Record(const CompactionResult& result, bool dropped);
  void PostJobs(SequenceCompaction* sequence, bool urgent);
  Range FindRange(const SequenceCompaction& sequence, int32_t unit) const;
  // Of all units, one after the other from where the last turn stopped; windowed layers left out.
  std::vector<Range> FindRanges(const SequenceCompaction& sequence) const;
  Allotment Allot(const SequenceCompaction& sequence, const std::vector<Range>& ranges,
                  bool urgent) const;
  Storage ChooseStorage(const SequenceCompaction& sequence, const Allotment& allotment,
                        const Range& range) const;
  // False if nothing can be posted any more in this turn.
  bool Post(SequenceCompaction* sequence, const Allotment& allotment, Range range);
  CompactionJob MakeJob(SequenceCompaction* sequence, const Range& range) const;
  double TargetBytes(const SequenceCompaction& sequence, const std::vector<Range>& ranges,
                     double ratio) const;
  BudgetItem Item(const SequenceCompaction& sequence, const Range& range) const;
  void Forget(SequenceCompaction* sequence);

  KvCache* const cache_;
  CompactionMailbox* const mailbox_;
  const CompactorOptions options_;
  const std::vector<bool> recalls_;  // [L * G] units whose entries never merge for being alike
  absl::flat_hash_map<std::string_view, std::unique_ptr<const Policy>> policies_;
  bool paused_ = false;
  int32_t next_phase_ = 0;
  absl::flat_hash_map<KvTicket, SequenceCompaction*> out_;
  int32_t num_waiting_results_ = 0;
  std::vector<SettledJob> settled_;
  int64_t no_reserve_ = 0;
};

}  // namespace condense

#endif  // CONDENSE_CACHE_COMPACTOR_H_
