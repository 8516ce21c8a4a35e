#ifndef CONDENSE_CACHE_COMPACTION_RUNNER_H_
#define CONDENSE_CACHE_COMPACTION_RUNNER_H_

// Carries out one compaction job: read, evidence, plan, build, validate.

#include <cstdint>
#include <vector>

#include "cache/compaction_job.h"
#include "cache/compaction_model.h"
#include "cache/compaction_pace.h"
#include "cache/rope_table.h"
#include "kernels/backend.h"

namespace condense {

// One job at a time; equal jobs over equal blocks give equal results, but for the seconds. Threads:
// thread-compatible; of the backend it calls only KvRead, KvBuild and KvEvaluate.
// Owns: the turns of every position it has met, 4 D bytes each, once per distinct RoPE.
class CompactionRunner {
 public:
  // Between pieces of a job it awaits `pace`, unless that is null.
  CompactionRunner(Backend* backend, CompactionModel model, CompactionPace* pace = nullptr);

  // Never throws a job away: every path ends in a result. The destinations hold the back if it was
  // accepted, anything otherwise; nothing else is written.
  // kFailed with INTERNAL for a job or a plan that breaks its promises, else with the backend's
  // status. Without held-out queries there is no validation: plans that merge or drop are refused,
  // a mere change of format is accepted. Protected entries of the range stay on their own, in the
  // destinations' format.
  CompactionResult Run(const CompactionJob& job);

 private:
  RopeTable* RopeOf(int32_t layer);

  Backend* const backend_;
  const CompactionModel model_;
  CompactionPace* const pace_;
  std::vector<RopeTable> ropes_;  // distinct ones
};

}  // namespace condense

#endif  // CONDENSE_CACHE_COMPACTION_RUNNER_H_
