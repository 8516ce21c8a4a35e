#ifndef CONDENSE_ENGINE_TOKENIZER_MERGE_H_
#define CONDENSE_ENGINE_TOKENIZER_MERGE_H_

// The merge loop of all our tokenizers: a row of symbols, the best neighbouring pair is joined
// until none can be.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/dtype.h"

namespace condense {

struct MergeSymbol {
  TokenId token = -1;  // -1: not in the vocabulary
  uint32_t begin = 0;  // byte offset in the word
  uint32_t size = 0;   // bytes; 0: merged into a symbol to its left
  int32_t previous = -1;
  int32_t next = -1;
};

// What a pair of neighbours becomes. Lower ranks go first, at equal rank the leftmost pair.
struct Merge {
  uint32_t rank = 0;
  TokenId token = -1;
};

// Appends a symbol at the end of the row.
inline void AppendSymbol(TokenId token, uint32_t begin, uint32_t size,
                         std::vector<MergeSymbol>* symbols) {
  const int32_t index = static_cast<int32_t>(symbols->size());
  if (index > 0) symbols->back().next = index;
  symbols->push_back(
      {.token = token, .begin = begin, .size = size, .previous = index - 1, .next = -1});
}

// Joins pairs of `symbols` in place. `find(left, right)` gives the merge of two neighbours, if
// there is one. Walk the result from symbols[0] along `next`. Cost: n log n calls of the heap for n
// symbols, 3 n calls of `find`.
template <typename Find>
class MergeLoop {
 public:
  MergeLoop(std::vector<MergeSymbol>* symbols, const Find& find)
      : symbols_(*symbols), find_(find) {}

  void Run() {
    heap_.reserve(symbols_.size());
    for (size_t i = 0; i + 1 < symbols_.size(); ++i)
      Consider(static_cast<int32_t>(i), /*sift=*/false);
    std::make_heap(heap_.begin(), heap_.end());
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end());
      const Candidate best = heap_.back();
      heap_.pop_back();
      Apply(best);
    }
  }

 private:
  struct Candidate {
    uint64_t order = 0;  // rank, then position
    TokenId token = -1;
    uint32_t size =
        0;  // of both symbols together: tells an outdated candidate, since symbols only grow
    int32_t left() const { return static_cast<int32_t>(order & 0xffffffffu); }
    // The top of a standard heap is its largest element.
    bool operator<(const Candidate& other) const { return order > other.order; }
  };

  void Consider(int32_t left, bool sift) {
    const MergeSymbol& a = symbols_[left];
    if (a.next < 0) return;
    const MergeSymbol& b = symbols_[a.next];
    const std::optional<Merge> merge = find_(a, b);
    if (!merge) return;
    heap_.push_back({.order = uint64_t{merge->rank} << 32 | static_cast<uint32_t>(left),
                     .token = merge->token,
                     .size = a.size + b.size});
    if (sift) std::push_heap(heap_.begin(), heap_.end());
  }

  void Apply(const Candidate& best) {
    MergeSymbol& a = symbols_[best.left()];
    if (a.size == 0 || a.next < 0) return;
    MergeSymbol& b = symbols_[a.next];
    if (a.size + b.size != best.size) return;
    a.token = best.token;
    a.size = best.size;
    a.next = b.next;
    if (b.next >= 0) symbols_[b.next].previous = best.left();
    b.size = 0;
    Consider(best.left(), /*sift=*/true);
    if (a.previous >= 0) Consider(a.previous, /*sift=*/true);
  }

  std::vector<MergeSymbol>& symbols_;
  const Find& find_;
  std::vector<Candidate> heap_;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_TOKENIZER_MERGE_H_
