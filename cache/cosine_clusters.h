#ifndef CONDENSE_CACHE_COSINE_CLUSTERS_H_
#define CONDENSE_CACHE_COSINE_CLUSTERS_H_

// Clusters of entries whose keys point the same way, inside windows of tokens.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/merge_builder.h"
#include "cache/unit_keys.h"

namespace condense {

// All cosines inside the windows are computed once; clustering at a threshold is then cheap, so
// that a search can try several. Threads: immutable.
// Cost: n * window * D / 2 multiplications and 4 n * window bytes, then about n * window / 4
// comparisons per threshold.
class CosineClusters {
 public:
  struct Result {
    MergeBuilder merges;
    float cosine;  // the threshold
  };

  // Windows are aligned to multiples of `window` positions and hold at most `window` entries.
  // Protected entries take no part. `start` holds the entries on their own; its masses rank them.
  CosineClusters(MergeBuilder start, const UnitKeys& keys, int32_t window, int32_t max_members);

  // Walks each window by descending mass: an entry that is not yet a member becomes a pivot and
  // takes up the most similar lighter entries that have at least this cosine.
  MergeBuilder Cluster(float cosine) const;
  Result At(float cosine) const { return {Cluster(cosine), cosine}; }
  // With the highest threshold in [lowest, top] that leaves at most `target` entries (to within
  // 0.0005: greedy clusters make the count not quite monotonic). If none does, the lowest.
  Result ReachTarget(int32_t target, float lowest, float top) const;

 private:
  struct Window {
    int32_t first = 0;  // in order_
    int32_t size = 0;
    int64_t cosines = 0;  // offset of its products, see kernels/dot_products.h
  };

  void FindWindows(int32_t window);
  void ComputeCosines(const UnitKeys& keys);
  void ClusterWindow(const Window& window, float cosine, MergeBuilder* merges) const;

  const MergeBuilder start_;
  const int32_t max_members_;
  std::vector<int32_t> order_;  // entries, window after window, each by descending mass
  std::vector<Window> windows_;
  std::unique_ptr<float[]> cosines_;
};

}  // namespace condense

#endif  // CONDENSE_CACHE_COSINE_CLUSTERS_H_
