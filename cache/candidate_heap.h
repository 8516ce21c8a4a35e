#ifndef CONDENSE_CACHE_CANDIDATE_HEAP_H_
#define CONDENSE_CACHE_CANDIDATE_HEAP_H_

// A min-heap of scored candidates with an index by id: the least important one is on top, and any
// one can be found, rescored and taken out.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace condense {

struct Candidate {
  double score = 0.0;
  int32_t id = 0;
};

// Order: ascending score, then ascending id, so that equal scores come out the same everywhere.
// Cost: Find and Top O(1); Insert, Update, Remove and Pop O(log n); Reserve once avoids growth.
// Threads: thread-compatible.
class CandidateHeap {
 public:
  void Reserve(int32_t num_candidates);
  bool empty() const { return heap_.empty(); }
  int32_t size() const { return static_cast<int32_t>(heap_.size()); }

  std::optional<double> Find(int32_t id) const;  // its score
  // REQUIRES: not empty.
  const Candidate& Top() const;
  // REQUIRES: the id is not there; the score is not NaN.
  void Insert(Candidate candidate);
  // REQUIRES: the id is there; the score is not NaN.
  void Update(Candidate candidate);
  // False if the id was not there.
  bool Remove(int32_t id);
  // REQUIRES: not empty.
  Candidate Pop();

 private:
  void Place(int32_t slot, Candidate candidate);
  // Moves the candidate up or down from a free slot until the order holds.
  void Sift(int32_t slot, Candidate candidate);

  std::vector<Candidate> heap_;
  absl::flat_hash_map<int32_t, int32_t> slot_of_;
};

}  // namespace condense

#endif  // CONDENSE_CACHE_CANDIDATE_HEAP_H_
