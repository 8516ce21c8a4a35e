#ifndef CONDENSE_CACHE_POLICY_H_
#define CONDENSE_CACHE_POLICY_H_

// A compaction policy: frozen evidence, keys and parameters in, a merge plan out.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "cache/entry_stats.h"
#include "cache/merge_builder.h"
#include "cache/merge_plan.h"
#include "cache/unit_entries.h"

namespace condense {

// What one entry costs in a storage format, for one unit.
struct FormatCost {
  StorageFormat format;
  double plain_bytes = 0.0;   // an entry where nothing was ever merged
  double merged_bytes = 0.0;  // an entry of a range in which something was: bias, position, count
};
// Codes, a 16-bit scale for each narrow vector, and 5 bytes of side arrays when merged.
FormatCost MakeFormatCost(StorageFormat format, int32_t head_dim);

struct PolicyParams {
  // The formats that the unit may have, widest first. `balanced` takes the widest that reaches the
  // target without a merge, else the last; the others take the last. Empty: 16 bits.
  std::vector<FormatCost> formats;
  // Bytes that the range should take afterwards; protected entries count in 16 bits. 0: no target,
  // the policy's own limits decide.
  double target_bytes = 0.0;
  int32_t max_entries = INT32_MAX;  // room for the result
  int32_t min_tokens = 512;         // shorter sequences only change their format
  uint64_t seed = 0;

  // similarity, balanced
  int32_t cluster_window = 128;  // tokens
  int32_t max_members = 8;
  float cosine = 0.90f;      // lowest that `similarity` merges; without a target, the one it uses
  float cosine_top = 0.97f;  // where the search for a target starts
  float balanced_cosine = 0.87f;  // lowest that `balanced` merges
  // Above 0: both merge at this one, which a sequence's units share, instead of seeking the
  // target's.
  float shared_cosine = 0.0f;
  bool allow_importance = false;  // `balanced` may fold by attention what is still too much

  // attention; fractions of the capacity
  double fill = 1.0;  // how full the unit's memory is
  double mark_at = 0.40;
  double soft_limit = 0.70;
  double hard_limit = 0.90;
  double drop_share = 0.10;   // of the candidates, per cycle, below the hard limit
  int32_t fold_window = 256;  // tokens: how far a fold may reach, half to either side
};

// Borrowed and immutable while a plan is made; n entries.
struct UnitView {
  UnitEntries entries;
  const UnitEvidence* evidence = nullptr;  // of the same n entries
  // [n, D], turned to position 0; may be empty for policies that need none.
  std::span<const float> keys;
  int32_t head_dim = 0;  // D, a multiple of 8
};

// Threads: immutable, any thread. A plan depends on the arguments alone, bit for bit on one
// machine.
class Policy {
 public:
  virtual ~Policy() = default;

  virtual std::string_view name() const = 0;
  virtual bool needs_keys() const { return false; }
  // Whether it merges by cosine alone, so that `shared_cosine` says how far it goes.
  virtual bool merges_alike() const { return false; }
  // Whether a plan depends on what drew attention.
  virtual bool needs_evidence() const { return true; }
  // A plan that ValidatePlan accepts, whatever the evidence and the keys hold. It reaches the
  // target or names a shortfall.
  MergePlan Plan(const UnitView& view, const PolicyParams& params) const;

 protected:
  struct Task {
    const UnitView* view = nullptr;
    const PolicyParams* params = nullptr;
    std::span<const float> masses;          // [n]
    std::optional<int32_t> target_entries;  // fewer than n, or nothing was asked for
  };

 private:
  virtual bool tries_formats_first() const { return false; }
  // Called for sequences long enough; format, target and room are filled in afterwards. Sets the
  // shortfall that applies if the target is missed.
  virtual MergePlan Merge(const Task& task) const = 0;
};

// Bytes of the result of a plan: 16 bits for protected entries, the plan's format for the others,
// with side arrays if the plan merges or drops or the source holds merged entries.
double PlanBytes(const MergePlan& plan, const UnitView& view, const FormatCost& cost);

}  // namespace condense

#endif  // CONDENSE_CACHE_POLICY_H_
