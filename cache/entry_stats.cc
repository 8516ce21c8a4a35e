#include "cache/entry_stats.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr int32_t kMostSteps = 65535;
constexpr float kAttendedShare = 0.25f;  // of an even share

int16_t UpperHalf(float value) {
  return static_cast<int16_t>(std::bit_cast<uint32_t>(value) >> 16);
}
float FromUpperHalf(int16_t half) {
  return std::bit_cast<float>(static_cast<uint32_t>(static_cast<uint16_t>(half)) << 16);
}

// NaN becomes 0.
float Clean(float p) { return p > 0 ? std::min(p, 1.0f) : 0.0f; }

// Three short passes rather than one: each has few enough arrays to be vectorised.
void AddStep(const float* __restrict p, size_t n, float* __restrict sum,
             uint16_t* __restrict steps) {
  for (size_t i = 0; i < n; ++i) {
    sum[i] += Clean(p[i]);
    ++steps[i];
  }
}
void RaiseMaxima(const float* __restrict p, size_t n, int16_t* __restrict half_max) {
  for (size_t i = 0; i < n; ++i) half_max[i] = std::max(half_max[i], UpperHalf(Clean(p[i])));
}
void NoteAttended(const float* __restrict p, size_t n, float attended, uint16_t* __restrict idle,
                  uint8_t* __restrict marked) {
  for (size_t i = 0; i < n; ++i) {
    const uint16_t older = static_cast<uint16_t>(idle[i] + (idle[i] != kMostSteps));
    idle[i] = p[i] > attended ? uint16_t{0} : older;
    marked[i] = p[i] > attended ? uint8_t{0} : marked[i];
  }
}

// Puts `by` in place of values[first, first + num_replaced).
template <typename T>
void Replace(int32_t first, int32_t num_replaced, const std::vector<T>& by,
             std::vector<T>* values) {
  DCHECK_LE(by.size(), static_cast<size_t>(num_replaced));
  const auto at = std::copy(by.begin(), by.end(), values->begin() + first);
  values->erase(at, values->begin() + first + num_replaced);
}

}  // namespace

std::vector<float> ObservedMasses(const UnitEvidence& evidence) {
  double sum = 0.0;
  int32_t num_seen = 0;
  for (int32_t i = 0; i < evidence.size(); ++i) {
    if (evidence.steps[i] == 0 || !(evidence.mean[i] >= 0)) continue;
    sum += std::min(evidence.mean[i], 1.0f);
    ++num_seen;
  }
  const float unseen =
      num_seen > 0 ? static_cast<float>(sum / num_seen) : 1.0f / std::max(evidence.size(), 1);
  std::vector<float> masses(evidence.size());
  for (int32_t i = 0; i < evidence.size(); ++i) {
    const bool seen = evidence.steps[i] > 0 && evidence.mean[i] >= 0;
    masses[i] = std::clamp(seen ? evidence.mean[i] : unseen, kLeastMass, 1.0f);
  }
  return masses;
}

void EntryStats::AppendMany(int32_t num_entries) {
  const size_t size = sum_.size() + num_entries;
  sum_.resize(size, 0.0f);
  steps_.resize(size, 0);
  idle_.resize(size, 0);
  for (std::vector<int16_t>& half : half_max_) half.resize(size, 0);
  marked_.resize(size, 0);
}

void EntryStats::Observe(std::span<const float> probability) {
  CHECK_LE(probability.size(), sum_.size());
  if (steps_counted_ == kMostSteps) HalveHistory();
  if (steps_in_half_ == kHalfWindow) StartHalfWindow();
  ++steps_counted_;
  ++steps_in_half_;
  const float attended =
      kAttendedShare / std::max<float>(static_cast<float>(probability.size()), 1);
  const size_t n = probability.size();
  AddStep(probability.data(), n, sum_.data(), steps_.data());
  RaiseMaxima(probability.data(), n, half_max_[current_half_].data());
  NoteAttended(probability.data(), n, attended, idle_.data(), marked_.data());
}

void EntryStats::StartHalfWindow() {
  current_half_ = 1 - current_half_;
  std::fill(half_max_[current_half_].begin(), half_max_[current_half_].end(), 0);
  steps_in_half_ = 0;
}

// Means stay; the past counts half as much from here on, and the counters never overflow.
void EntryStats::HalveHistory() {
  for (size_t i = 0; i < sum_.size(); ++i) {
    const uint16_t steps = steps_[i] / 2;
    if (steps_[i] > 0) sum_[i] *= static_cast<float>(steps) / steps_[i];
    steps_[i] = steps;
  }
  steps_counted_ /= 2;
}

void EntryStats::CarryOver(const MergePlan& plan, int32_t first) {
  CHECK(first >= 0 && first + plan.num_entries <= size());
  std::vector<bool> is_marked(plan.num_entries, false);
  for (const int32_t entry : plan.marks) is_marked[entry] = true;
  EntryStats result;
  result.AppendMany(static_cast<int32_t>(plan.groups.size()));
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    double mean = 0.0;
    uint16_t idle = kMostSteps;
    bool marked = false;
    for (const MergeMember& member : plan.members_of(plan.groups[g])) {
      const int32_t i = first + member.entry;
      if (steps_[i] > 0) mean += static_cast<double>(sum_[i]) / steps_[i];
      result.steps_[g] = std::max(result.steps_[g], steps_[i]);
      idle = std::min(idle, idle_[i]);
      for (int h : {0, 1}) {
        result.half_max_[h][g] = std::max(result.half_max_[h][g], half_max_[h][i]);
      }
      marked |= is_marked[member.entry];
    }
    const MergeGroup& group = plan.groups[g];
    result.sum_[g] = group.num_members == 1 ? sum_[first + plan.members[group.first_member].entry]
                                            : static_cast<float>(mean * result.steps_[g]);
    result.idle_[g] = idle;
    result.marked_[g] = marked;
  }
  Replace(first, plan.num_entries, result.sum_, &sum_);
  Replace(first, plan.num_entries, result.steps_, &steps_);
  Replace(first, plan.num_entries, result.idle_, &idle_);
  for (int h : {0, 1}) Replace(first, plan.num_entries, result.half_max_[h], &half_max_[h]);
  Replace(first, plan.num_entries, result.marked_, &marked_);
}

UnitEvidence EntryStats::Freeze(int32_t first, int32_t num_entries) const {
  CHECK(first >= 0 && num_entries >= 0 && first + num_entries <= size());
  UnitEvidence evidence;
  for (int32_t i = first; i < first + num_entries; ++i) {
    evidence.mean.push_back(steps_[i] > 0 ? sum_[i] / steps_[i] : 0.0f);
    evidence.window_max.push_back(FromUpperHalf(std::max(half_max_[0][i], half_max_[1][i])));
    evidence.steps.push_back(steps_[i]);
    evidence.idle_steps.push_back(idle_[i]);
    evidence.marked.push_back(marked_[i]);
  }
  return evidence;
}

void EntryStats::Clear() { *this = EntryStats(); }

}  // namespace condense
