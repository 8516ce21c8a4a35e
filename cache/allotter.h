#ifndef CONDENSE_CACHE_ALLOTTER_H_
#define CONDENSE_CACHE_ALLOTTER_H_

// How far each unit of a sequence is compacted: what may go, which bytes that may take, and in
// which format.

#include <cstdint>
#include <vector>

#include "cache/budget.h"
#include "cache/compactor_options.h"
#include "cache/kv_cache.h"
#include "cache/sequence_compaction.h"

namespace condense {

// Of an entry of a full block.
double EntryBytes(KvFormat format, const KvBlockShape& shape, KvBlockFlags flags);

// Blocks of a unit that may be compacted.
struct CompactionRange {
  int32_t unit = 0;
  int32_t first = 0;
  int32_t num = 0;
  bool plain_front = true;  // nothing before it was compacted
};

// What a sequence may spend on its ranges at one turn.
struct Allotment {
  KvFormat format = KvFormat::kK16V16;
  bool merges = false;  // entries must go, the format is not enough
  double cosine = 1.0;  // for policies that merge what is alike
  double share = 1.0;   // of the entries that stay, for the other policies
  Budget budget;
};

// How the entries of one range will be stored, and by whom they are chosen.
struct RangeStorage {
  KvFormat format = KvFormat::kK16V16;
  KvBlockFlags flags = 0;
  bool merges = false;
  double target_bytes = 0.0;
  double curve_entries = 0.0;  // that should be left, by the curves alone; 0: none were asked
  double cosine = 0.0;         // 0: the policy finds its own way to the target
};

// Reads the tables, changes nothing. Threads: the engine thread's.
class Allotter {
 public:
  // Both outlive it.
  Allotter(const KvCache* cache, const CompactorOptions* options);

  // Of all units, one after the other from where the last turn stopped; windowed layers left out.
  std::vector<CompactionRange> FindRanges(const SequenceCompaction& sequence) const;
  // `ranges`: all of the sequence, due or not. `in_force`: the sequence's own compression, with the
  // ratio, of the whole sequence, and the formats that hold for this turn.
  Allotment Allot(const SequenceCompaction& sequence, const std::vector<CompactionRange>& ranges,
                  const Compression& in_force) const;
  RangeStorage ChooseStorage(const SequenceCompaction& sequence, const Allotment& allotment,
                             const CompactionRange& range) const;

  // What is compacted already; units that find facts again only if `all`. Empty for sequences that
  // must not lose entries.
  std::vector<CompactionRange> FindCompacted(const SequenceCompaction& sequence, bool all) const;
  // Their storage with `share` of their bytes, each unit by itself.
  RangeStorage ChooseFurther(const SequenceCompaction& sequence, const CompactionRange& range,
                             double share) const;

 private:
  CompactionRange FindRange(const SequenceCompaction& sequence, int32_t unit) const;
  double TargetBytes(const SequenceCompaction& sequence, const std::vector<CompactionRange>& ranges,
                     double ratio) const;
  // A unit that finds facts again, under a policy that merges what is alike.
  bool KeepsAll(const SequenceCompaction& sequence, int32_t unit) const;
  bool MayMerge(const SequenceCompaction& sequence) const;
  BudgetItem Item(const SequenceCompaction& sequence, const CompactionRange& range) const;

  const KvCache* const cache_;
  const CompactorOptions* const options_;
  const int32_t first_block_;        // behind the sinks
  const std::vector<bool> recalls_;  // [L * G] units that find facts again
};

}  // namespace condense

#endif  // CONDENSE_CACHE_ALLOTTER_H_
