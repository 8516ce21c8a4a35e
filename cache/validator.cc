#include "cache/validator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double OutputError(const float* front, const float* back, int32_t head_dim) {
  double error = 0.0, norm = 0.0;
  for (int32_t d = 0; d < head_dim; ++d) {
    const double difference = double{back[d]} - front[d];
    error += difference * difference;
    norm += double{front[d]} * front[d];
  }
  return error == 0.0 ? 0.0 : std::sqrt(error / norm);
}

}  // namespace

SwapMap MakeSwapMap(const MergePlan& plan, int32_t first, int32_t front_entries) {
  CHECK(first >= 0 && plan.num_entries <= front_entries - first);
  const auto num_groups = static_cast<int32_t>(plan.groups.size());
  SwapMap map{.back_of = std::vector<int32_t>(front_entries),
              .num_back = front_entries - plan.num_entries + num_groups};
  const auto range = map.back_of.begin() + first;
  std::iota(map.back_of.begin(), range, 0);
  std::iota(range + plan.num_entries, map.back_of.end(), first + num_groups);
  for (int32_t g = 0; g < num_groups; ++g) {
    for (const MergeMember& member : plan.members_of(plan.groups[g])) {
      range[member.entry] = first + g;
    }
  }
  for (const int32_t entry : plan.drops) range[entry] = SwapMap::kDropped;
  return map;
}

void Validator::Add(const QueryFindings& front, const QueryFindings& back) {
  CHECK_EQ(front.num_rows(), back.num_rows());
  CHECK_EQ(front.num_entries, static_cast<int32_t>(map_.back_of.size()));
  CHECK_EQ(back.num_entries, map_.num_back);
  for (int32_t row = 0; row < front.num_rows(); ++row) {
    const double output = OutputError(front.out_of(row), back.out_of(row), front.head_dim);
    const double log_mass = std::abs(double{back.log_sum_exp[row]} - front.log_sum_exp[row]);
    const double hits = HitRatio(front.mass_of(row), back.mass_of(row));
    const bool is_finite = std::isfinite(output) && std::isfinite(log_mass) && std::isfinite(hits);
    output_error_ += is_finite ? output : kInfinity;
    log_mass_error_ += is_finite ? log_mass : kInfinity;
    hit_ratio_ += is_finite ? std::min(hits, 1.0) : 0.0;
    ++num_rows_;
  }
}

double Validator::HitRatio(const float* front, const float* back) {
  std::fill(hits_.begin(), hits_.end(), 0.0);
  for (size_t e = 0; e < map_.back_of.size(); ++e) {
    if (map_.back_of[e] != SwapMap::kDropped) hits_[map_.back_of[e]] += front[e];
  }
  double sum = 0.0, total = 0.0;
  for (size_t c = 0; c < hits_.size(); ++c) {
    sum += std::min<double>(back[c], hits_[c]);
    total += back[c] + hits_[c];
  }
  // A minimum hides numbers that are not finite.
  return sum + 0.0 * total;
}

SwapQuality Validator::Quality() const {
  if (num_rows_ == 0) return {};
  return {.output_error = output_error_ / num_rows_,
          .log_mass_error = log_mass_error_ / num_rows_,
          .hit_ratio = hit_ratio_ / num_rows_};
}

bool WithinLimits(const SwapQuality& quality, const SwapLimits& limits) {
  // Written so that NaN fails.
  return quality.output_error <= limits.output_error &&
         quality.log_mass_error <= limits.log_mass_error;
}

}  // namespace condense
