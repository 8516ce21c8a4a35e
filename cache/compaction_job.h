#ifndef CONDENSE_CACHE_COMPACTION_JOB_H_
#define CONDENSE_CACHE_COMPACTION_JOB_H_

// What passes through the mailbox: one unit's compaction as a value, and what came of it.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "cache/policy.h"
#include "kernels/kv_op_args.h"

namespace condense {

// Names the staged blocks and the pinned range in the KvCache.
using KvTicket = int64_t;

// Queries of one unit that attention really asked, copied when the job was frozen. `visible` is how
// many entries of the front list a query of the past could see: queries stand in ascending order.
struct QuerySamples {
  std::vector<float> q;          // [N, H/G, D], after RoPE
  std::vector<int32_t> visible;  // [N]
  int32_t size() const { return static_cast<int32_t>(visible.size()); }
};

struct SwapLimits {
  double output_error = 0.05;    // mean over held-out queries of |back - front| / |front|
  double log_mass_error = 0.05;  // mean of |log-sum-exp of back - of front|
};

// One unit of one sequence. The blocks named here are sealed and pinned: nobody writes or frees
// them while the job is out. The destinations belong to the job.
struct CompactionJob {
  KvTicket ticket = 0;
  int32_t layer = 0;
  int32_t kv_head = 0;
  // The front list at the freeze, sealed blocks only; the range to compact is
  // [first, first + num) of it.
  std::vector<KvBuildSource> front;
  int32_t first_block = 0;
  int32_t num_blocks = 0;
  // Of one format and one set of flags; counts 0. Enough for every entry of the range.
  std::vector<KvBlockRef> destinations;

  const Policy* policy = nullptr;  // immutable, outlives the job
  PolicyParams params;             // formats: one, that of the destinations
  Protection protection;
  std::vector<uint8_t> marked;  // of the range's entries, by an earlier job; may be empty
  QuerySamples evidence;        // what the plan sees
  QuerySamples held_out;        // what it does not see; asked over the whole front
  SwapLimits limits;
};

// What validation found on the held-out queries, front against back.
struct SwapQuality {
  double output_error = 0.0;
  double log_mass_error = 0.0;
  double hit_ratio = 1.0;  // mean; share of attention that lands where it landed before
};

enum class SwapOutcome : uint8_t {
  kAccepted,
  kRefused,  // validation: an error above its limit
  kUseless,  // the back would not be smaller
  kFailed,   // the backend failed, or the plan was invalid: `status` says what
};

struct CompactionResult {
  KvTicket ticket = 0;
  SwapOutcome outcome = SwapOutcome::kFailed;
  absl::Status status;             // not OK exactly when kFailed
  std::vector<KvBlockRef> blocks;  // kAccepted: the destinations used, in order, counts set
  int32_t entries_before = 0;      // of the range
  int32_t entries_after = 0;
  Shortfall shortfall = Shortfall::kNone;
  float cosine = 0.0f;  // the lowest that merged; 0: none did
  // Of the new entries, which are the old ones where their number is the same; empty: none.
  std::vector<uint8_t> marked;
  SwapQuality quality;
  int32_t held_out_queries = 0;  // that `quality` is the mean of; 0: nothing was measured
  // Wall time of the phases that were reached.
  double read_seconds = 0.0, evidence_seconds = 0.0, plan_seconds = 0.0;
  double build_seconds = 0.0, validate_seconds = 0.0;
  double cpu_seconds = 0.0;  // of the worker's thread, all of the job
};

}  // namespace condense

#endif  // CONDENSE_CACHE_COMPACTION_JOB_H_
