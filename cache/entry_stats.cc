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

void EntryStats::Observe(std::span<const float> probability, size_t num_seen) {
  CHECK_LE(probability.size(), sum_.size());
  if (steps_counted_ == kMostSteps) HalveHistory();
  if (steps_in_half_ == kHalfWindow) StartHalfWindow();
  ++steps_counted_;
  ++steps_in_half_;
  const float attended = kAttendedShare / std::max<float>(static_cast<float>(num_seen), 1);
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
  EntryStats result;
  result.AppendMany(static_cast<int32_t>(plan.groups.size()));
  std::vector<uint8_t> is_marked(plan.num_entries, 0);
  for (const int32_t entry : plan.marks) is_marked[entry] = 1;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    result.Take(g, *this, first, plan.members_of(plan.groups[g]));
    result.marked_[g] = is_marked[plan.members[plan.groups[g].first_member].entry];
  }
  Replace(first, plan.num_entries, result.sum_, &sum_);
  Replace(first, plan.num_entries, result.steps_, &steps_);
  Replace(first, plan.num_entries, result.idle_, &idle_);
  for (int h : {0, 1}) Replace(first, plan.num_entries, result.half_max_[h], &half_max_[h]);
  Replace(first, plan.num_entries, result.marked_, &marked_);
}

void EntryStats::Take(size_t to, const EntryStats& from, int32_t first,
                      std::span<const MergeMember> members) {
  double mean = 0.0;
  idle_[to] = kMostSteps;
  for (const MergeMember& member : members) {
    const int32_t i = first + member.entry;
    // A lone entry's sum is copied, not computed.
    if (members.size() > 1 && from.steps_[i] > 0) {
      mean += static_cast<double>(from.sum_[i]) / from.steps_[i];
    }
    sum_[to] = from.sum_[i];
    steps_[to] = std::max(steps_[to], from.steps_[i]);
    idle_[to] = std::min(idle_[to], from.idle_[i]);
    for (int h : {0, 1}) half_max_[h][to] = std::max(half_max_[h][to], from.half_max_[h][i]);
  }
  if (members.size() > 1) sum_[to] = static_cast<float>(mean * steps_[to]);
}

UnitEvidence EntryStats::Freeze(int32_t first, int32_t num_entries) const {
  CHECK(first >= 0 && num_entries >= 0 && first + num_entries <= size());
  const auto range = [first, num_entries](const auto& values) {
    return std::span(values).subspan(first, num_entries);
  };
  UnitEvidence evidence;
  evidence.mean.resize(num_entries);
  evidence.window_max.resize(num_entries);
  for (int32_t i = 0; i < num_entries; ++i) {
    const int32_t e = first + i;
    evidence.mean[i] = sum_[e] / std::max<float>(steps_[e], 1);
    evidence.window_max[i] = FromUpperHalf(std::max(half_max_[0][e], half_max_[1][e]));
  }
  const auto steps = range(steps_), idle = range(idle_);
  const auto marked = range(marked_);
  evidence.steps.assign(steps.begin(), steps.end());
  evidence.idle_steps.assign(idle.begin(), idle.end());
  evidence.marked.assign(marked.begin(), marked.end());
  return evidence;
}

void EntryStats::Clear() { *this = EntryStats(); }

}  // namespace condense
