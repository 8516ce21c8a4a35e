#ifndef CONDENSE_CACHE_IMPORTANCE_FOLD_H_
#define CONDENSE_CACHE_IMPORTANCE_FOLD_H_

// Folds the entries that draw the least attention into their most similar neighbours.

#include <cstdint>
#include <span>
#include <vector>

#include "cache/merge_builder.h"
#include "cache/unit_keys.h"

namespace condense {

// Pop the least of the candidates, fold it into the most similar entry that is left nearby, rescore
// that one by its new mass and reinsert it; again, until at most `target` entries are left, `quota`
// have been folded or no candidate has a partner. Only `candidates` (ascending) leave; every
// entry that is not protected may take them up. The nearest fold_window / 2 entries on either side,
// and none further away in tokens, come into question. Returns how many were folded.
// Cost: O(log n + fold_window * D) per fold.
int32_t FoldLeastImportant(std::span<const int32_t> candidates, int32_t target, int32_t quota,
                           int32_t fold_window, const UnitKeys& keys, MergeBuilder* merges);

// The same in a fixed order, without rescoring: each of `order` that is left folds into its most
// similar neighbour, if one can take it. Returns how many were folded.
int32_t FoldInOrder(std::span<const int32_t> order, int32_t target, int32_t fold_window,
                    const UnitKeys& keys, MergeBuilder* merges);

// The `number` least of the candidates that are left, ascending by entry.
std::vector<int32_t> LeastImportant(std::span<const int32_t> candidates, int32_t number,
                                    const MergeBuilder& merges);

}  // namespace condense

#endif  // CONDENSE_CACHE_IMPORTANCE_FOLD_H_
