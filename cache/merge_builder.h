#ifndef CONDENSE_CACHE_MERGE_BUILDER_H_
#define CONDENSE_CACHE_MERGE_BUILDER_H_

// A merge plan in the making: entries fold into others or are dropped until the policy is content.

#include <cstdint>
#include <span>
#include <vector>

#include "cache/merge_plan.h"

namespace condense {

// Starts with every entry on its own. Refuses what would make an invalid plan, so that Build()
// always yields a valid one. A copyable value: a search tries thresholds on copies.
// The source outlives the builder. Threads: thread-compatible.
class MergeBuilder {
 public:
  // masses[n] > 0: what each entry weighs in folds. `kind` says what becomes of groups.
  MergeBuilder(const UnitEntries& source, std::span<const float> masses, GroupKind kind);

  int32_t num_entries() const { return static_cast<int32_t>(entries_.size()); }
  int32_t num_left() const { return num_left_; }  // entries of the result so far
  bool is_left(int32_t entry) const { return entries_[entry].is_left; }
  bool is_protected(int32_t entry) const { return source_->is_protected(entry); }
  int32_t position(int32_t entry) const { return source_->positions[entry]; }
  // Of the entry and of all that was folded into it.
  double mass(int32_t entry) const { return entries_[entry].mass; }

  // False if one of them is protected, the bias would pass ln 16 or the count kMaxCount.
  // REQUIRES: both are left and differ.
  bool CanFold(int32_t from, int32_t into) const;
  // `from`, with all that was folded into it, joins the group of `into`, if it can.
  [[nodiscard]] bool TryFold(int32_t from, int32_t into);
  // The entry, with all that was folded into it, leaves. REQUIRES: it is left and not protected.
  void Drop(int32_t entry);

  MergePlan Build() const;

 private:
  struct Entry {
    double mass = 0.0;  // of the group
    double own_mass = 0.0;
    double weight = 0.0;      // exp(bias) of the entry itself
    double sum_weight = 0.0;  // of the group
    int32_t count = 0;        // of the group
    int32_t next = -1;        // next member of the group, -1 at its end
    int32_t last = 0;         // last member of the group
    bool is_left = true;
  };

  void AddGroup(int32_t pivot, MergePlan* plan) const;
  void AddMembers(int32_t pivot, MergePlan* plan) const;
  void SortGroups(MergePlan* plan) const;

  const UnitEntries* source_;
  GroupKind kind_;
  int32_t num_left_;
  std::vector<Entry> entries_;  // [n]
};

}  // namespace condense

#endif  // CONDENSE_CACHE_MERGE_BUILDER_H_
