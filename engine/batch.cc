#include "engine/batch.h"

namespace condense {

void Batch::Build(const StepPlan& plan) {
  tokens.clear();
  positions.clear();
  sequences.clear();
  kv.clear();
  logit_rows.clear();
  captures.clear();
  for (const StepPlan::Item& item : plan.items) {
    Sequence* sequence = item.sequence;
    sequences.push_back(
        {.first_row = static_cast<int32_t>(tokens.size()), .num_tokens = item.num_tokens});
    kv.push_back(sequence->kv());
    for (int32_t i = 0; i < item.num_tokens; ++i) {
      const int64_t position = sequence->computed() + i;
      if (sequence->NeedsLogits(position)) {
        logit_rows.push_back({static_cast<int32_t>(tokens.size()), sequence, position});
      }
      if (sequence->compaction() != nullptr) {
        QueryLog* log = sequence->compaction()->query_log();
        const int32_t slot = log->SlotFor(position);
        if (slot >= 0) captures.push_back({static_cast<int32_t>(tokens.size()), log, slot});
      }
      tokens.push_back(sequence->tokens()[position]);
      positions.push_back(static_cast<int32_t>(position));
    }
  }
}

}  // namespace condense
