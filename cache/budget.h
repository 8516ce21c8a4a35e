#ifndef CONDENSE_CACHE_BUDGET_H_
#define CONDENSE_CACHE_BUDGET_H_

// Who of a sequence's units gets how much: one cosine for all of them, so that a head whose keys
// are alike gives what a head of distinct keys must not be asked for.

#include <cstdint>
#include <span>
#include <vector>

#include "cache/merge_curves.h"
#include "cache/policy.h"

namespace condense {

// What one unit has to compact.
struct BudgetItem {
  int32_t unit = 0;
  int32_t num_entries = 0;
  // Of the distance 1 - cosine up to which the others merge, what this unit may use; less than 1
  // after refusals.
  double distance_share = 1.0;
};

// Threads: immutable. `curves` outlives it.
class Budget {
 public:
  // `cost`: of an entry, as blocks hold it. `text_factor`: entries left in this text over what the
  // curves say.
  Budget(const MergeCurves* curves, const FormatCost& cost, double text_factor)
      : curves_(curves), cost_(cost), text_factor_(text_factor) {}

  // The cosine at which the unit merges where the sequence merges at `cosine`.
  static double UnitCosine(const BudgetItem& item, double cosine) {
    return 1.0 - (1.0 - cosine) * item.distance_share;
  }
  // Entries left by the curves, without the text's factor, and with it.
  double CurveEntries(const BudgetItem& item, double cosine) const;
  double Entries(const BudgetItem& item, double cosine) const;
  // False: side arrays would take more than the few merges save.
  bool Merges(const BudgetItem& item, double cosine) const;
  double Bytes(const BudgetItem& item, double cosine) const;
  // The highest cosine in [lowest, 1] at which all items together take at most `target_bytes`, to
  // within 0.0005; `lowest` if none does.
  double FindCosine(std::span<const BudgetItem> items, double target_bytes, double lowest) const;

 private:
  const MergeCurves* curves_;
  FormatCost cost_;
  double text_factor_;
};

}  // namespace condense

#endif  // CONDENSE_CACHE_BUDGET_H_
