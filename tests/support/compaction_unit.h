#ifndef CONDENSE_TESTS_SUPPORT_COMPACTION_UNIT_H_
#define CONDENSE_TESTS_SUPPORT_COMPACTION_UNIT_H_

// One unit of one sequence in a backend's memory, as compaction jobs find it: sealed 16-bit blocks,
// queries that look at them, room to build in.

#include <cstdint>
#include <span>
#include <vector>

#include "cache/compaction_job.h"
#include "cache/compaction_model.h"
#include "kernels/backend.h"

namespace condense {

inline constexpr KvBlockFlags kMergedFlags = kKvBias | kKvPosition | kKvCount;

struct CompactionUnitOptions {
  int32_t num_entries = 0;
  int32_t head_dim = 64;
  int32_t block_tokens = 32;
  int32_t group = 3;
  int32_t copies = 1;    // of each key and value: that many neighbours are the same
  bool has_rope = true;  // false: keys are the same at every position
  int32_t room = 4;      // to build in, in multiples of the unit's own bytes
  uint64_t seed = 1;
};

// Keys as in MakeUnit, values normal. The unit is head 1 of 2 of layer 1 of 2. Room that nothing
// was built in is poisoned: each of its bytes is kPoison, a NaN as f16 and as scale.
class CompactionUnit {
 public:
  static constexpr std::byte kPoison{0x7e};

  CompactionUnit(Backend* backend, const CompactionUnitOptions& options);

  const CompactionModel& model() const { return model_; }
  // The newest blocks: the last may be short.
  const std::vector<KvBuildSource>& front() const { return front_; }
  std::vector<KvBlockRef> TakeBlocks(KvFormat format, KvBlockFlags flags, int32_t num_blocks);
  // `num` queries from the past, of entries spread evenly, then `num` that see the whole front.
  QuerySamples Evidence(int32_t num, uint64_t seed) const;
  QuerySamples HeldOut(int32_t num, uint64_t seed) const;
  // Over the whole front, with room for all of its entries, 16 + 16 queries of evidence, 8 held
  // out, and limits that refuse nothing finite. `ratio` of the bytes of 16 bits; 0: no target.
  CompactionJob Job(const Policy* policy, KvFormat format, KvBlockFlags flags, double ratio);
  // The back of an accepted job takes the place of its range.
  void Swap(const CompactionJob& job, const CompactionResult& result);

  // Bytes of the arena.
  std::vector<std::byte> Image() const;

 private:
  std::vector<std::byte> SourceImage(const CompactionUnitOptions& options);
  const float* Store(const std::vector<float>& values);
  std::vector<float> RandomQueries(int32_t num, uint64_t seed) const;

  Backend* const backend_;
  CompactionModel model_;
  std::vector<KvBuildSource> front_;
  int32_t num_positions_;
  Buffer arena_;
  std::vector<Buffer> tables_;
  int64_t next_free_ = 0;
};

}  // namespace condense

#endif  // CONDENSE_TESTS_SUPPORT_COMPACTION_UNIT_H_
