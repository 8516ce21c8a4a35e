#ifndef CONDENSE_CACHE_MERGE_CURVES_H_
#define CONDENSE_CACHE_MERGE_CURVES_H_

// How many entries of a unit are left when those that are at least so alike have merged: measured
// once per model, because heads differ far more in it than texts do.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace condense {

// A value. Threads: immutable once filled.
class MergeCurves {
 public:
  // Cosines 0.80, 0.81 ... 0.99.
  static constexpr int32_t kNumPoints = 20;
  static float Cosine(int32_t point) { return 0.80f + 0.01f * static_cast<float>(point); }
  using Shares = std::array<float, kNumPoints>;

  // Units without a measured curve have that of a middling head.
  MergeCurves() = default;
  explicit MergeCurves(int32_t num_units) : units_(num_units) {}

  // `left`: the share of the entries that is left at each cosine, in (0, 1]. Where greedy clusters
  // leave fewer at a higher cosine the curve is made to rise.
  void Set(int32_t unit, Shares left);
  // Linear between the points, 1 from cosine 1 on; below the first point that point's.
  double Left(int32_t unit, double cosine) const;

 private:
  struct Unit {
    bool measured = false;
    Shares left{};
  };

  std::vector<Unit> units_;
};

// The curve of one unit. keys [n, D]: position-free, in ascending order of `positions`.
MergeCurves::Shares MeasureMergeCurve(std::span<const float> keys,
                                      std::span<const int32_t> positions, int32_t head_dim,
                                      int32_t cluster_window, int32_t max_members);

}  // namespace condense

#endif  // CONDENSE_CACHE_MERGE_CURVES_H_
