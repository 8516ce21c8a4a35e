#include "cache/cosine_clusters.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/dot_products.h"

namespace condense {
namespace {

constexpr float kThresholdStep = 0.0005f;

}  // namespace

CosineClusters::CosineClusters(MergeBuilder start, const UnitKeys& keys, int32_t window,
                               int32_t max_members)
    : start_(std::move(start)), max_members_(max_members) {
  CHECK(window > 0 && max_members > 0);
  FindWindows(window);
  int64_t size = 0;
  for (Window& w : windows_) {
    w.cosines = size;
    size += int64_t{w.size} * DotProductStride(w.size);
  }
  cosines_ = std::make_unique_for_overwrite<float[]>(size);
  ComputeCosines(keys);
}

void CosineClusters::FindWindows(int32_t window) {
  int32_t number = -1;  // of the window at hand
  for (int32_t i = 0; i < start_.num_entries(); ++i) {
    if (start_.is_protected(i)) continue;
    if (windows_.empty() || start_.position(i) / window != number ||
        windows_.back().size == window) {
      windows_.push_back({.first = static_cast<int32_t>(order_.size())});
      number = start_.position(i) / window;
    }
    order_.push_back(i);
    ++windows_.back().size;
  }
  std::vector<std::pair<double, int32_t>> ranked;  // by minus the mass, then by number
  for (const Window& w : windows_) {
    const auto order = order_.begin() + w.first;
    ranked.clear();
    for (int32_t i = 0; i < w.size; ++i) ranked.push_back({-start_.mass(order[i]), order[i]});
    std::sort(ranked.begin(), ranked.end());
    for (int32_t i = 0; i < w.size; ++i) order[i] = ranked[i].second;
  }
}

void CosineClusters::ComputeCosines(const UnitKeys& keys) {
  const int32_t head_dim = keys.head_dim();
  std::vector<float> rows, scratch;
  for (const Window& window : windows_) {
    rows.resize(int64_t{window.size} * head_dim);
    scratch.resize(int64_t{DotProductStride(window.size)} * head_dim);
    for (int32_t i = 0; i < window.size; ++i) {
      std::copy_n(keys.key(order_[window.first + i]), head_dim,
                  rows.begin() + int64_t{i} * head_dim);
    }
    DotProducts({.rows = rows.data(),
                 .num_rows = window.size,
                 .head_dim = head_dim,
                 .scratch = scratch.data(),
                 .out = cosines_.get() + window.cosines});
  }
}

void CosineClusters::ClusterWindow(const Window& window, float cosine, MergeBuilder* merges) const {
  const int32_t* const order = order_.data() + window.first;
  std::vector<uint8_t> is_member(window.size, 0);
  std::vector<int32_t> alike;
  for (int32_t i = 0; i < window.size; ++i) {
    if (is_member[i]) continue;
    const float* const row =
        cosines_.get() + window.cosines + int64_t{i} * DotProductStride(window.size);
    alike.clear();
    for (int32_t j = i + 1; j < window.size; ++j) {
      if (row[j] >= cosine && !is_member[j]) alike.push_back(j);
    }
    std::sort(alike.begin(), alike.end(), [row](int32_t a, int32_t b) {
      return row[a] > row[b] || (row[a] == row[b] && a < b);
    });
    int32_t room = max_members_ - 1;
    for (size_t k = 0; k < alike.size() && room > 0; ++k) {
      if (!merges->TryFold(order[alike[k]], order[i])) continue;
      is_member[alike[k]] = 1;
      --room;
    }
  }
}

MergeBuilder CosineClusters::Cluster(float cosine) const {
  MergeBuilder merges = start_;
  for (const Window& window : windows_) ClusterWindow(window, cosine, &merges);
  return merges;
}

CosineClusters::Result CosineClusters::ReachTarget(int32_t target, float lowest, float top) const {
  Result best{Cluster(lowest), lowest};
  if (best.merges.num_left() > target) return best;
  Result highest{Cluster(top), top};
  if (highest.merges.num_left() <= target) return highest;
  float misses = top;
  while (misses - best.cosine > kThresholdStep) {
    const float middle = (misses + best.cosine) / 2;
    MergeBuilder merges = Cluster(middle);
    if (merges.num_left() > target) {
      misses = middle;
    } else {
      best = {std::move(merges), middle};
    }
  }
  return best;
}

}  // namespace condense
