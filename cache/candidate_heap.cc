#include "cache/candidate_heap.h"

#include "kernels/base/check.h"

namespace condense {
namespace {

bool Before(const Candidate& a, const Candidate& b) {
  return a.score < b.score || (a.score == b.score && a.id < b.id);
}

}  // namespace

void CandidateHeap::Reserve(int32_t num_candidates) {
  heap_.reserve(num_candidates);
  slot_of_.reserve(num_candidates);
}

std::optional<double> CandidateHeap::Find(int32_t id) const {
  const auto found = slot_of_.find(id);
  if (found == slot_of_.end()) return std::nullopt;
  return heap_[found->second].score;
}

const Candidate& CandidateHeap::Top() const {
  CHECK(!heap_.empty());
  return heap_.front();
}

void CandidateHeap::Insert(Candidate candidate) {
  CHECK(candidate.score == candidate.score);
  CHECK(!slot_of_.contains(candidate.id));
  heap_.emplace_back();
  Sift(size() - 1, candidate);
}

void CandidateHeap::Update(Candidate candidate) {
  CHECK(candidate.score == candidate.score);
  const auto found = slot_of_.find(candidate.id);
  CHECK(found != slot_of_.end());
  Sift(found->second, candidate);
}

bool CandidateHeap::Remove(int32_t id) {
  const auto found = slot_of_.find(id);
  if (found == slot_of_.end()) return false;
  const int32_t slot = found->second;
  slot_of_.erase(found);
  const Candidate last = heap_.back();
  heap_.pop_back();
  if (slot < size()) Sift(slot, last);
  return true;
}

Candidate CandidateHeap::Pop() {
  const Candidate top = Top();
  Remove(top.id);
  return top;
}

void CandidateHeap::Place(int32_t slot, Candidate candidate) {
  heap_[slot] = candidate;
  slot_of_[candidate.id] = slot;
}

void CandidateHeap::Sift(int32_t slot, Candidate candidate) {
  while (slot > 0 && Before(candidate, heap_[(slot - 1) / 2])) {
    Place(slot, heap_[(slot - 1) / 2]);
    slot = (slot - 1) / 2;
  }
  for (int32_t child = 2 * slot + 1; child < size(); child = 2 * slot + 1) {
    if (child + 1 < size() && Before(heap_[child + 1], heap_[child])) ++child;
    if (!Before(heap_[child], candidate)) break;
    Place(slot, heap_[child]);
    slot = child;
  }
  Place(slot, candidate);
}

}  // namespace condense
