#ifndef CONDENSE_ENGINE_BATCH_H_
#define CONDENSE_ENGINE_BATCH_H_

// A StepPlan as flat arrays: what the model runs over.

#include <cstdint>
#include <vector>

#include "engine/sequence.h"
#include "engine/step_plan.h"
#include "kernels/op_args.h"

namespace condense {

// A row whose logits are wanted.
struct LogitRow {
  int32_t row = 0;  // in [0, T)
  Sequence* sequence = nullptr;
  int64_t position = 0;  // of the row's token in its sequence
};

// A row whose queries a sequence keeps for its compaction.
struct QueryCapture {
  int32_t row = 0;
  QueryLog* log = nullptr;
  int32_t slot = 0;
};

// Built anew each step in storage that is kept. Threads: thread-compatible, owner is the engine
// thread.
struct Batch {
  std::vector<TokenId> tokens;            // [T]
  std::vector<int32_t> positions;         // [T]
  std::vector<KvSequenceArgs> sequences;  // [S]; `lists` is filled in layer by layer
  std::vector<KvSequence*> kv;            // [S]
  std::vector<LogitRow> logit_rows;       // by row
  std::vector<QueryCapture> captures;

  void Build(const StepPlan& plan);
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_BATCH_H_
