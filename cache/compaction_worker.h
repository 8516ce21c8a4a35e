#ifndef CONDENSE_CACHE_COMPACTION_WORKER_H_
#define CONDENSE_CACHE_COMPACTION_WORKER_H_

// Carries out compaction jobs: evidence, plan, build, validate. And the thread that does so.

#include <memory>
#include <thread>
#include <vector>

#include "cache/compaction_job.h"
#include "cache/compaction_mailbox.h"
#include "cache/rope_table.h"
#include "kernels/backend.h"

namespace condense {

// What a job needs to know of the model. Constant; device memory outlives the worker.
struct CompactionModel {
  std::byte* arena = nullptr;  // device
  KvBlockShape shape;
  int32_t num_kv_heads = 0;      // G
  int32_t group = 0;             // H/G
  float attention_scale = 0.0f;
  // By layer: [G, D] mean keys before RoPE (device), or null where none are known; the angles of
  // the layer's RoPE; the same angles for policies.
  std::vector<const float*> key_mean;
  std::vector<PositionTable> positions;
  std::vector<RopeFrequencies> frequencies;
};

// One job at a time. Threads: thread-compatible; of the backend it calls only KvRead, KvBuild and
// KvEvaluate.
class CompactionRunner {
 public:
  CompactionRunner(Backend* backend, CompactionModel model);
  // Never throws a job away: every path ends in a result. The destinations hold the back if it was
  // accepted, anything otherwise.
  CompactionResult Run(const CompactionJob& job);

 private:
  // evidence: KvEvaluate's mass of the evidence queries, group maximum, observed in order
  // plan, check, translate to KvBuildArgs, KvBuild, validate
  Backend* const backend_;
  const CompactionModel model_;
};

// Owns the thread: takes jobs from the mailbox until it is closed.
// Threads: created and destroyed by the thread that owns the engine. The destructor closes the
// mailbox and joins; results remain to be collected.
class CompactionWorker {
 public:
  // `yields`: the thread gives way to all others (lowest priority), for machines whose cores are
  // all taken by the backend's pool.
  CompactionWorker(Backend* backend, CompactionModel model, CompactionMailbox* mailbox,
                   bool yields);
  ~CompactionWorker();
  CompactionWorker(const CompactionWorker&) = delete;
  CompactionWorker& operator=(const CompactionWorker&) = delete;

 private:
  CompactionMailbox* const mailbox_;
  CompactionRunner runner_;
  std::thread thread_;
};

}  // namespace condense

#endif  // CONDENSE_CACHE_COMPACTION_WORKER_H_
