#include "cache/cosine_clusters.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr int32_t kTile = 8;  // columns computed together
constexpr int32_t kRows = 4;  // rows computed together
constexpr float kThresholdStep = 0.0005f;

// out[r][c] = sum over d of rows[d][r] * columns[d][c]: one tile, held in registers.
void MultiplyTile(const float* rows, const float* columns, int32_t stride, int32_t head_dim,
                  float* out) {
  float sums[kRows][kTile] = {};
  for (int32_t d = 0; d < head_dim; ++d) {
    for (int32_t r = 0; r < kRows; ++r) {
      for (int32_t c = 0; c < kTile; ++c) sums[r][c] += rows[r] * columns[c];
    }
    rows += stride;
    columns += stride;
  }
  for (int32_t r = 0; r < kRows; ++r) std::copy_n(sums[r], kTile, out + int64_t{r} * stride);
}

}  // namespace

CosineClusters::CosineClusters(MergeBuilder start, const UnitKeys& keys, int32_t window,
                               int32_t max_members)
    : start_(std::move(start)), max_members_(max_members) {
  CHECK(window > 0 && max_members > 0);
  FindWindows(window);
  int64_t size = 0;
  for (Window& w : windows_) {
    w.stride = (w.size + kTile - 1) / kTile * kTile;
    w.cosines = size;
    size += int64_t{w.stride} * w.stride;
  }
  cosines_.resize(size);
  for (const Window& w : windows_) ComputeCosines(keys, w);
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
  for (const Window& w : windows_) {
    std::sort(
        order_.begin() + w.first, order_.begin() + w.first + w.size, [this](int32_t a, int32_t b) {
          return start_.mass(a) > start_.mass(b) || (start_.mass(a) == start_.mass(b) && a < b);
        });
  }
}

void CosineClusters::ComputeCosines(const UnitKeys& keys, const Window& window) {
  const int32_t head_dim = keys.head_dim();
  const int32_t stride = window.stride;
  std::vector<float> transposed(int64_t{head_dim} * stride, 0.0f);  // [D, stride]
  for (int32_t i = 0; i < window.size; ++i) {
    const float* key = keys.key(order_[window.first + i]);
    for (int32_t d = 0; d < head_dim; ++d) transposed[int64_t{d} * stride + i] = key[d];
  }
  float* const out = cosines_.data() + window.cosines;
  for (int32_t row = 0; row < stride; row += kRows) {
    for (int32_t column = row / kTile * kTile; column < stride; column += kTile) {
      MultiplyTile(transposed.data() + row, transposed.data() + column, stride, head_dim,
                   out + int64_t{row} * stride + column);
    }
  }
}

void CosineClusters::ClusterWindow(const Window& window, float cosine, MergeBuilder* merges) const {
  const int32_t* const order = order_.data() + window.first;
  std::vector<uint8_t> is_member(window.size, 0);
  std::vector<int32_t> alike;
  for (int32_t i = 0; i < window.size; ++i) {
    if (is_member[i]) continue;
    const float* const row = cosines_.data() + window.cosines + int64_t{i} * window.stride;
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
