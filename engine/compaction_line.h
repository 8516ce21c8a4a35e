#ifndef CONDENSE_ENGINE_COMPACTION_LINE_H_
#define CONDENSE_ENGINE_COMPACTION_LINE_H_

// Everything that compaction of one model's cache needs, put together: mean keys and angles,
// mailbox, compactor, worker and its pace.

#include <memory>

#include "absl/status/statusor.h"
#include "cache/compaction_mailbox.h"
#include "cache/compaction_pace.h"
#include "cache/compaction_worker.h"
#include "cache/compactor.h"
#include "cache/kv_cache.h"
#include "engine/config.h"
#include "engine/model.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/backend.h"

namespace condense {

// Owns: the worker's thread. Threads: made and destroyed by the thread that owns the engine; the
// compactor belongs to the engine thread.
class CompactionLine {
 public:
  // What it works with outlives it. The cache is empty; it is used to measure the mean keys.
  // `max_positions`: positions that sequences may reach.
  static absl::StatusOr<std::unique_ptr<CompactionLine>> Make(
      Backend* backend, Model* model, KvCache* cache, const Tokenizer& tokenizer,
      const CompactionConfig& config, int32_t step_tokens, int32_t max_positions);

  Compactor* compactor() { return &compactor_; }
  // Null where the worker has a core for itself.
  CompactionPace* pace() { return pace_.get(); }

 private:
  CompactionLine(Backend* backend, KvCache* cache, CompactionModel model, CompactorOptions options,
                 std::unique_ptr<CompactionPace> pace);

  // In this order: the worker ends before the compactor collects what it left.
  const std::unique_ptr<CompactionPace> pace_;
  CompactionMailbox mailbox_;
  Compactor compactor_;
  CompactionWorker worker_;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_COMPACTION_LINE_H_
