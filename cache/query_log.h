#ifndef CONDENSE_CACHE_QUERY_LOG_H_
#define CONDENSE_CACHE_QUERY_LOG_H_

// Queries that a sequence has really asked, kept for its compaction jobs: on what they attended a
// plan is made, and by others it is judged.

#include <cstdint>
#include <vector>

#include "cache/compaction_job.h"
#include "cache/kv_layout.h"

namespace condense {

// Keeps the queries of the newest kRecent rows and of kEven rows spread evenly over the prompt
// before them. Owns: [kEven + kRecent, L, H, D] floats of host memory.
// Threads: thread-compatible, owner is the engine thread.
class QueryLog {
 public:
  static constexpr int32_t kEven = 24;
  static constexpr int32_t kRecent = 32;
  // Every so many-th recent query is held out from plans.
  static constexpr int32_t kHoldOutEvery = 4;

  // group: H/G.
  QueryLog(const KvLayout& layout, int32_t group, int64_t prompt_tokens);

  // Where the queries of the row at `position` go, which from now on counts as recorded; -1 if they
  // are not wanted. Rows come in ascending order.
  int32_t SlotFor(int64_t position);
  // [H, D] of a slot and layer: what the forward pass fills in.
  float* Row(int32_t slot, int32_t layer) {
    return rows_.data() + (int64_t{slot} * num_layers_ + layer) * row_size_;
  }
  // Takes over what another log of the same layout recorded.
  void CopyFrom(const QueryLog& from) {
    positions_ = from.positions_;
    rows_ = from.rows_;
  }
  int32_t row_size() const { return row_size_; }  // H * D

  // Queries of one unit that see the `front_entries` entries of its sealed front, of which the
  // `first_entry` before the range do not matter. Even ones only while entries are plain tokens,
  // so that they can be cut to what the query saw.
  void Gather(int32_t layer, int32_t kv_head, int32_t front_entries, int32_t first_entry,
              bool plain_front, QuerySamples* evidence, QuerySamples* held_out) const;
  // The positions of the recent queries that Gather gives, in its order.
  std::vector<int64_t> RecentPositions(bool held_out) const;

 private:
  // Slots of recent queries, by position; which of them are held out goes by their place.
  std::vector<int32_t> RecentSlots() const;
  static bool IsHeldOut(size_t place) { return place % kHoldOutEvery == kHoldOutEvery - 1; }
  void Add(int32_t slot, int32_t layer, int32_t kv_head, int32_t visible, QuerySamples* to) const;

  const int32_t num_layers_;
  const int32_t row_size_;
  const int32_t unit_size_;  // H/G * D
  const int64_t prompt_tokens_;
  std::vector<int64_t> positions_;  // [kEven + kRecent], -1: empty
  std::vector<float> rows_;
};

}  // namespace condense

#endif  // CONDENSE_CACHE_QUERY_LOG_H_
