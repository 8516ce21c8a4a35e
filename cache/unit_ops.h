#ifndef CONDENSE_CACHE_UNIT_OPS_H_
#define CONDENSE_CACHE_UNIT_OPS_H_

// The backend's compaction ops, for one unit of the model.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "cache/build_recipe.h"
#include "cache/compaction_model.h"
#include "cache/compaction_pace.h"
#include "cache/float_array.h"
#include "cache/query_findings.h"
#include "kernels/backend.h"

namespace condense {

// The entries of some blocks as plain numbers; n in all.
struct UnitRange {
  std::vector<int32_t> positions;  // [n]
  std::vector<float> biases;       // [n]
  std::vector<int32_t> counts;     // [n]
  FloatArray keys;                 // [n, D], after RoPE; empty where they were not asked for
};

int32_t CountEntries(std::span<const KvBlockRef> blocks);
int32_t CountEntries(std::span<const KvBuildSource> sources);

// Borrows backend, model and pace; before each op it awaits the pace. Threads: thread-compatible.
// Errors: whatever the backend returns; the results are undefined then.
class UnitOps {
 public:
  // `pace` may be null.
  UnitOps(Backend* backend, const CompactionModel* model, int32_t layer, int32_t kv_head,
          CompactionPace* pace = nullptr);

  int32_t head_dim() const { return model_->shape.head_dim; }
  int32_t group() const { return model_->group; }
  struct Wanted {
    bool out, mass;
  };
  static constexpr Wanted kMasses = {.out = false, .mass = true};
  static constexpr Wanted kOut = {.out = true, .mass = false};
  static constexpr Wanted kOutAndMasses = {.out = true, .mass = true};

  // As many queries as Evaluate should be asked about at once: it reads the list once for all of
  // them and returns their masses of every entry.
  int32_t queries_at_once() const;

  // Where much is computed between two ops.
  void AwaitPace();
  absl::Status Read(std::span<const KvBuildSource> sources, bool with_keys, UnitRange* range);
  absl::Status Build(std::span<const KvBuildSource> sources, const BuildRecipe& recipe);
  // What q [num_queries, H/G, D] find in the list of these blocks; what is not wanted is left out.
  // In an empty one: outputs of zero and a log-sum-exp of -infinity.
  absl::Status Evaluate(std::span<const KvBlockRef> blocks, const float* q, int32_t num_queries,
                        Wanted wanted, QueryFindings* findings);

 private:
  Backend* const backend_;
  const CompactionModel* const model_;
  const float* const key_mean_;  // device [D] or null
  const PositionTable positions_;
  CompactionPace* const pace_;
};

}  // namespace condense

#endif  // CONDENSE_CACHE_UNIT_OPS_H_
