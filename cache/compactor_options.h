#ifndef CONDENSE_CACHE_COMPACTOR_OPTIONS_H_
#define CONDENSE_CACHE_COMPACTOR_OPTIONS_H_

// What compaction does alike for all sequences of a server.

#include <cstdint>
#include <vector>

#include "cache/compression.h"
#include "cache/merge_curves.h"

namespace condense {

struct CompactorOptions {
  int32_t swap_every = 8;            // steps of a sequence from one turn to the next
  int32_t window_tokens = 64;        // the newest: never compacted
  int32_t grace_tokens = 16;         // the newest: not even ranked
  int32_t num_sinks = 4;             // the first: kept, as their block is, where a window is
  int32_t min_blocks = 2;            // a unit waits for so many blocks to merge at once
  int32_t group = 1;                 // H/G
  std::vector<bool> centred_layers;  // [L]: a mean key is known
  MergeCurves merge_curves;          // what units have in common with themselves, as far as known
  std::vector<float> recall;         // [L * G] how well a unit finds facts again; empty: unknown
  // How full the pool must be, for policies that mark and fold by importance.
  double mark_at = 0.40, soft_limit = 0.70, hard_limit = 0.90;
  double drop_share = 0.10;

  // What is so harmless that it keeps no window needs no company either.
  int32_t MinBlocks(const Compression& compression) const {
    return compression.keeps_window ? min_blocks : 1;
  }
};

}  // namespace condense

#endif  // CONDENSE_CACHE_COMPACTOR_OPTIONS_H_
