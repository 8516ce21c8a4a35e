#ifndef CONDENSE_CACHE_ROPE_TABLE_H_
#define CONDENSE_CACHE_ROPE_TABLE_H_

// Turns keys from one position to another with the model's own RoPE frequencies.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/op_args.h"

namespace condense {

// The angle of one position in each pair of components, all scaling included.
struct RopeFrequencies {
  std::vector<double> radians;  // [D/2]
  RopePairing pairing = RopePairing::kAdjacent;

  int32_t head_dim() const { return 2 * static_cast<int32_t>(radians.size()); }
};

// Cosines and sines of whole positions, computed once and shared by all units of a job.
// Threads: immutable but for Extend().
class RopeTable {
 public:
  explicit RopeTable(RopeFrequencies frequencies) : frequencies_(std::move(frequencies)) {}

  // Makes turns by up to max_turn positions known. Cost: D/2 cosines and sines per new position;
  // 4 D bytes each.
  void Extend(int32_t max_turn);
  int32_t num_positions() const { return num_positions_; }

  // key[D] of position p becomes the same key at position p + turn.
  // REQUIRES: |turn| < num_positions().
  void Turn(int32_t turn, float* key) const;
  // Turns each of keys[n, D] back to position 0: the position-free keys that policies compare.
  void ToOrigin(std::span<const int32_t> positions, float* keys) const;

  const RopeFrequencies& frequencies() const { return frequencies_; }

 private:
  RopeFrequencies frequencies_;
  int32_t num_positions_ = 0;
  std::vector<float> cos_, sin_;  // [num_positions, D/2]
};

}  // namespace condense

#endif  // CONDENSE_CACHE_ROPE_TABLE_H_
