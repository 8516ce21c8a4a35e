#include "cache/importance_fold.h"

#include <algorithm>

#include "cache/candidate_heap.h"

namespace condense {
namespace {

// The entries that may take up others, as a list that forgets those that are gone.
class Neighbours {
 public:
  explicit Neighbours(const MergeBuilder& merges)
      : before_(merges.num_entries(), -1), after_(merges.num_entries(), -1) {
    int32_t last = -1;
    for (int32_t i = 0; i < merges.num_entries(); ++i) {
      if (!merges.is_left(i) || merges.is_protected(i)) continue;
      before_[i] = last;
      if (last >= 0) after_[last] = i;
      last = i;
    }
  }
  int32_t Before(int32_t i) const { return before_[i]; }
  int32_t After(int32_t i) const { return after_[i]; }
  void Remove(int32_t i) {
    if (before_[i] >= 0) after_[before_[i]] = after_[i];
    if (after_[i] >= 0) before_[after_[i]] = before_[i];
  }

 private:
  std::vector<int32_t> before_, after_;  // -1: none
};

// The entry nearby that is most alike and can take this one; the earlier among equals, -1 if none.
int32_t FindBest(int32_t entry, int32_t reach, const UnitKeys& keys, const MergeBuilder& merges,
                 const Neighbours& neighbours) {
  const int64_t position = merges.position(entry);
  int32_t best = -1;
  float highest = -2.0f;
  const auto consider = [&](int32_t other) {
    const float cosine = keys.Cosine(entry, other);
    const bool better = cosine > highest || (cosine == highest && other < best);
    if (!better || !merges.CanFold(entry, other)) return;
    highest = cosine;
    best = other;
  };
  int32_t room = reach;
  for (int32_t i = neighbours.Before(entry); i >= 0 && room > 0; i = neighbours.Before(i), --room) {
    if (position - merges.position(i) > reach) break;
    consider(i);
  }
  room = reach;
  for (int32_t i = neighbours.After(entry); i >= 0 && room > 0; i = neighbours.After(i), --room) {
    if (merges.position(i) - position > reach) break;
    consider(i);
  }
  return best;
}

CandidateHeap MakeHeap(std::span<const int32_t> candidates, const MergeBuilder& merges) {
  CandidateHeap heap;
  heap.Reserve(static_cast<int32_t>(candidates.size()));
  for (const int32_t entry : candidates) {
    if (merges.is_left(entry)) heap.Insert({merges.mass(entry), entry});
  }
  return heap;
}

}  // namespace

int32_t FoldLeastImportant(std::span<const int32_t> candidates, int32_t target, int32_t quota,
                           int32_t fold_window, const UnitKeys& keys, MergeBuilder* merges) {
  if (merges->num_left() <= target || quota <= 0) return 0;
  CandidateHeap heap = MakeHeap(candidates, *merges);
  Neighbours neighbours(*merges);
  int32_t num_folded = 0;
  while (!heap.empty() && merges->num_left() > target && num_folded < quota) {
    const int32_t entry = heap.Pop().id;
    const int32_t into = FindBest(entry, fold_window / 2, keys, *merges, neighbours);
    if (into < 0 || !merges->TryFold(entry, into)) continue;
    neighbours.Remove(entry);
    ++num_folded;
    if (heap.Find(into).has_value()) heap.Update({merges->mass(into), into});
  }
  return num_folded;
}

int32_t FoldInOrder(std::span<const int32_t> order, int32_t target, int32_t fold_window,
                    const UnitKeys& keys, MergeBuilder* merges) {
  Neighbours neighbours(*merges);
  int32_t num_folded = 0;
  for (const int32_t entry : order) {
    if (merges->num_left() <= target) break;
    const int32_t into = FindBest(entry, fold_window / 2, keys, *merges, neighbours);
    if (into < 0 || !merges->TryFold(entry, into)) continue;
    neighbours.Remove(entry);
    ++num_folded;
  }
  return num_folded;
}

std::vector<int32_t> LeastImportant(std::span<const int32_t> candidates, int32_t number,
                                    const MergeBuilder& merges) {
  CandidateHeap heap = MakeHeap(candidates, merges);
  std::vector<int32_t> least;
  for (; number > 0 && !heap.empty(); --number) least.push_back(heap.Pop().id);
  std::sort(least.begin(), least.end());
  return least;
}

}  // namespace condense
