#ifndef CONDENSE_CACHE_SEQUENCE_COMPACTION_H_
#define CONDENSE_CACHE_SEQUENCE_COMPACTION_H_

// What compaction keeps for one sequence.

#include <cstdint>
#include <vector>

#include "cache/compaction_job.h"
#include "cache/compression.h"
#include "cache/kv_cache.h"
#include "cache/query_log.h"

namespace condense {

class Allotter;
class Compactor;
class Policy;

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
  double min_hit_ratio() const { return min_hit_ratio_; }  // of accepted swaps; 1 without any
  // Of what its queries find, that is still found: over the swaps of a unit their product, over
  // units the mean; 1 without any.
  double hit_ratio() const;
  // Of the units that are ever compacted, those with an accepted swap.
  double swapped_share() const;
  double max_output_error() const { return max_output_error_; }  // of accepted swaps
  int32_t jobs_out() const { return jobs_out_; }

 private:
  friend class Allotter;
  friend class Compactor;
  struct Unit {
    int32_t cool_down = 0;        // turns until it may try again
    int32_t next_cool_down = 1;   // doubles with every refusal
    double distance_share = 1.0;  // of what others may merge or drop, lowered by refusals
    bool merged_further = false;  // beyond the ratio, because memory ran out: once
    double hit_ratio = 1.0;       // product over accepted swaps
    bool swapped = false;         // there were any
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
  bool has_backlog_ = true;                // may post before its turn
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

}  // namespace condense

#endif  // CONDENSE_CACHE_SEQUENCE_COMPACTION_H_
