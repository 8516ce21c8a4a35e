#include "engine/quality/sliding_quantile.h"

#include <algorithm>
#include <cmath>

#include "engine/quality/confidence.h"
#include "kernels/base/check.h"

namespace condense {

SlidingQuantile::SlidingQuantile(absl::Duration window, const QuantileScale& scale,
                                 int32_t num_buckets)
    : scale_(scale), ring_(window, num_buckets, Empty(scale)) {}

SlidingQuantile::Bucket SlidingQuantile::Empty(const QuantileScale& scale) {
  CHECK(std::isfinite(scale.lowest) && std::isfinite(scale.highest));
  CHECK_LT(scale.lowest, scale.highest);
  CHECK(!scale.geometric || scale.lowest > 0);
  CHECK_GE(scale.num_bins, 1);
  return {.counts = std::vector<uint32_t>(static_cast<size_t>(scale.num_bins), 0)};
}

int32_t SlidingQuantile::BinOf(double value) const {
  const double clamped = std::clamp(value, scale_.lowest, scale_.highest);
  const double along =
      scale_.geometric
          ? std::log(clamped / scale_.lowest) / std::log(scale_.highest / scale_.lowest)
          : (clamped - scale_.lowest) / (scale_.highest - scale_.lowest);
  return std::min(static_cast<int32_t>(along * scale_.num_bins), scale_.num_bins - 1);
}

double SlidingQuantile::Edge(double bin) const {
  const double along = bin / scale_.num_bins;
  return scale_.geometric ? scale_.lowest * std::pow(scale_.highest / scale_.lowest, along)
                          : scale_.lowest + along * (scale_.highest - scale_.lowest);
}

bool SlidingQuantile::Add(absl::Time time, double value) {
  if (!std::isfinite(value)) return false;
  Bucket* bucket = ring_.At(time);
  if (bucket == nullptr) return false;
  ++bucket->counts[static_cast<size_t>(BinOf(value))];
  bucket->smallest = bucket->count == 0 ? value : std::min(bucket->smallest, value);
  bucket->largest = bucket->count == 0 ? value : std::max(bucket->largest, value);
  ++bucket->count;
  return true;
}

SlidingQuantile::Bucket SlidingQuantile::Joined(absl::Time now) const {
  Bucket all = Empty(scale_);
  ring_.ForEach(now, [&all](const Bucket& bucket) {
    if (bucket.count == 0) return;
    for (size_t i = 0; i < all.counts.size(); ++i) all.counts[i] += bucket.counts[i];
    all.smallest = all.count == 0 ? bucket.smallest : std::min(all.smallest, bucket.smallest);
    all.largest = all.count == 0 ? bucket.largest : std::max(all.largest, bucket.largest);
    all.count += bucket.count;
  });
  return all;
}

double SlidingQuantile::ValueAtRank(const Bucket& all, int64_t rank) const {
  int64_t before = 0;
  size_t bin = 0;
  while (bin + 1 < all.counts.size() && before + all.counts[bin] < rank)
    before += all.counts[bin++];
  // Evenly spread inside the bin; the ends of all samples are known exactly.
  const double inside = (static_cast<double>(rank - before) - 0.5) / std::max(all.counts[bin], 1u);
  const bool first = rank == 1;
  const bool last = rank == all.count;
  if (first) return all.smallest;
  if (last) return all.largest;
  return std::clamp(Edge(static_cast<double>(bin) + inside), all.smallest, all.largest);
}

int64_t SlidingQuantile::Count(absl::Time now) const {
  int64_t count = 0;
  ring_.ForEach(now, [&count](const Bucket& bucket) { count += bucket.count; });
  return count;
}

std::optional<double> SlidingQuantile::Quantile(absl::Time now, double level) const {
  CHECK(level > 0 && level < 1);
  const Bucket all = Joined(now);
  if (all.count == 0) return std::nullopt;
  const double rank = std::ceil(level * static_cast<double>(all.count) - 1e-9);
  return ValueAtRank(all, std::clamp<int64_t>(static_cast<int64_t>(rank), 1, all.count));
}

std::optional<double> SlidingQuantile::Bound(absl::Time now, RankOf rank_of, double level,
                                             double confidence) const {
  const Bucket all = Joined(now);
  if (all.count == 0) return std::nullopt;
  const int64_t rank = rank_of(all.count, level, confidence);
  if (rank == 0) return std::nullopt;
  return ValueAtRank(all, rank);
}

std::optional<double> SlidingQuantile::LowerBound(absl::Time now, double level,
                                                  double confidence) const {
  return Bound(now, QuantileLowerRank, level, confidence);
}

std::optional<double> SlidingQuantile::UpperBound(absl::Time now, double level,
                                                  double confidence) const {
  return Bound(now, QuantileUpperRank, level, confidence);
}

}  // namespace condense
