#include "cache/merge_curves.h"

#include <algorithm>
#include <utility>

#include "cache/cosine_clusters.h"
#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr MergeCurves::Shares kMiddling = {
    0.22f, 0.24f, 0.26f, 0.28f, 0.30f, 0.32f, 0.34f, 0.37f, 0.40f, 0.43f,
    0.47f, 0.51f, 0.56f, 0.61f, 0.67f, 0.73f, 0.80f, 0.87f, 0.93f, 0.97f,
};

}  // namespace

void MergeCurves::Set(int32_t unit, Shares left) {
  for (int32_t i = 1; i < kNumPoints; ++i) left[i] = std::max(left[i], left[i - 1]);
  units_.at(unit) = {true, left};
}

double MergeCurves::Left(int32_t unit, double cosine) const {
  const bool measured = unit < static_cast<int32_t>(units_.size()) && units_[unit].measured;
  const Shares& left = measured ? units_[unit].left : kMiddling;
  const double place = (cosine - Cosine(0)) / 0.01;
  if (!(place > 0)) return left.front();
  if (cosine >= 1.0) return 1.0;
  const auto point = std::min(static_cast<int32_t>(place), kNumPoints - 1);
  const double next = point + 1 < kNumPoints ? left[point + 1] : 1.0;
  return left[point] + (place - point) * (next - left[point]);
}

MergeCurves::Shares MeasureMergeCurve(std::span<const float> keys,
                                      std::span<const int32_t> positions, int32_t head_dim,
                                      int32_t cluster_window, int32_t max_members) {
  CHECK(!positions.empty());
  const UnitEntries entries = {.positions = positions,
                               .protection = {.num_sinks = 0,
                                              .window_tokens = 0,
                                              .grace_tokens = 0,
                                              .end_position = positions.back() + 1}};
  const std::vector<float> masses(positions.size(), 1.0f);
  const CosineClusters clusters(MergeBuilder(entries, masses, GroupKind::kPivot),
                                UnitKeys(keys, head_dim), cluster_window, max_members);
  MergeCurves::Shares left;
  for (int32_t i = 0; i < MergeCurves::kNumPoints; ++i) {
    left[i] = static_cast<float>(clusters.Cluster(MergeCurves::Cosine(i)).num_left()) /
              static_cast<float>(positions.size());
  }
  return left;
}

}  // namespace condense
