// Any bytes as evidence and keys: every policy makes a plan that passes. Any bytes as a plan, or as
// changes to a good one: what passes can be carried out, and does what the rules say.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cache/fold.h"
#include "cache/policies/registry.h"
#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr int32_t kHeadDim = 8;
constexpr int32_t kMostEntries = 96;

// The input as a sequence of numbers; zeros once it is used up.
class Source {
 public:
  Source(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}

  template <typename T>
  T Next() {
    T value{};
    const size_t size = std::min(sizeof(T), static_cast<size_t>(end_ - at_));
    if (size > 0) std::memcpy(&value, at_, size);
    at_ += size;
    return value;
  }
  int32_t Below(int32_t bound) { return Next<uint8_t>() % bound; }
  // Small and tame, or any bits at all.
  float Number() {
    const auto byte = Next<uint8_t>();
    return byte < 250 ? static_cast<float>(byte) / 250.0f : Next<float>();
  }
  bool empty() const { return at_ == end_; }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

struct Unit {
  std::vector<int32_t> positions, counts;
  std::vector<float> biases, keys;
  UnitEvidence evidence;
  UnitView view;
};

// Facts that a unit can really have; evidence and keys that it cannot.
std::unique_ptr<Unit> MakeUnit(Source* source) {
  auto unit = std::make_unique<Unit>();
  const int32_t num_entries = source->Below(kMostEntries + 1);
  int32_t position = source->Below(8);
  for (int32_t i = 0; i < num_entries; ++i) {
    unit->positions.push_back(position);
    position += source->Below(4);
    unit->counts.push_back(source->Below(16) == 0 ? 1 + source->Below(kMaxCount) : 1);
    unit->biases.push_back(unit->counts[i] == 1 ? 0.0f : kMaxBias * source->Below(17) / 16);
    unit->evidence.mean.push_back(source->Number());
    unit->evidence.window_max.push_back(source->Number());
    unit->evidence.steps.push_back(source->Below(4));
    unit->evidence.idle_steps.push_back(source->Below(255));
    unit->evidence.marked.push_back(source->Below(2));
    for (int32_t d = 0; d < kHeadDim; ++d) unit->keys.push_back(source->Number());
  }
  unit->view = {.entries = {.positions = unit->positions,
                            .biases = unit->biases,
                            .counts = unit->counts,
                            .protection = {.num_sinks = source->Below(8),
                                           .window_tokens = source->Below(64),
                                           .grace_tokens = source->Below(32),
                                           .end_position = position + source->Below(100)}},
                .evidence = &unit->evidence,
                .keys = unit->keys,
                .head_dim = kHeadDim};
  return unit;
}

PolicyParams MakeParams(Source* source, int32_t num_entries) {
  PolicyParams params{.min_tokens = source->Below(2)};
  params.target_bytes = num_entries * 4.0 * kHeadDim * source->Below(256) / 128;
  params.max_entries = num_entries - source->Below(4);
  params.seed = source->Next<uint8_t>();
  params.cluster_window = 1 + source->Below(200);
  params.max_members = 1 + source->Below(16);
  params.cosine = params.balanced_cosine = source->Number();
  params.fill = source->Number();
  params.drop_share = source->Number();
  params.fold_window = source->Below(255);
  params.allow_importance = source->Below(2) == 1;
  return params;
}

// The rules once more, in another form: by what each entry ends up in.
void CheckRules(const MergePlan& plan, const UnitEntries& source) {
  std::vector<int32_t> used(source.size(), 0);
  int64_t tokens_out = 0, tokens_in = 0;
  for (const MergeGroup& group : plan.groups) {
    double keys = 0, values = 0;
    for (const MergeMember& member : plan.members_of(group)) {
      ++used.at(member.entry);
      keys += member.key_weight;
      values += member.value_weight;
      CHECK(group.num_members == 1 || !source.is_protected(member.entry));
    }
    CHECK(std::abs(keys - 1) < 1e-3 && std::abs(values - 1) < 1e-3);
    CHECK(group.num_members == 1 || std::abs(group.bias) < 2.7736f);
    tokens_out += group.count;
  }
  for (const int32_t entry : plan.drops) {
    ++used.at(entry);
    tokens_out += source.count(entry);
    CHECK(!source.is_protected(entry));
  }
  for (int32_t i = 0; i < source.size(); ++i) {
    CHECK_EQ(used[i], 1);
    tokens_in += source.count(i);
  }
  CHECK_EQ(tokens_out, tokens_in);
}

// Executes a plan that passed; the sanitizers watch.
void CarryOut(const MergePlan& plan, const Unit& unit) {
  EntryStats stats;
  stats.AppendMany(unit.view.entries.size() + 2);
  stats.Observe(unit.evidence.mean);
  stats.CarryOver(plan, 1);
  CHECK_EQ(stats.size(), static_cast<int32_t>(plan.groups.size()) + 2);

  RopeFrequencies frequencies;
  for (int32_t i = 0; i < kHeadDim / 2; ++i) frequencies.radians.push_back(std::pow(0.1, i));
  RopeTable rope(frequencies);
  rope.Extend(unit.positions.empty() ? 0 : unit.positions.back());
  const EntryVectors vectors{unit.positions, unit.keys.data(), unit.keys.data(), kHeadDim};
  std::vector<float> key(kHeadDim), value(kHeadDim);
  for (const MergeGroup& group : plan.groups) {
    BuildEntry(plan, group, vectors, rope, key.data(), value.data());
  }
}

void Judge(const MergePlan& plan, const Unit& unit, int32_t max_entries) {
  const absl::Status status = ValidatePlan(plan, unit.view.entries, max_entries);
  if (!status.ok()) {
    CHECK(!status.message().empty());
    return;
  }
  CHECK_LE(static_cast<int32_t>(plan.groups.size()), max_entries);
  CheckRules(plan, unit.view.entries);
  CarryOut(plan, unit);
}

template <typename T>
T* Pick(std::vector<T>* values, Source* source) {
  return values->empty() ? nullptr : &(*values)[source->Next<uint8_t>() % values->size()];
}

// One change of one field.
void Change(Source* source, MergePlan* plan) {
  const int32_t kind = source->Below(12);
  const auto small = source->Next<int8_t>();
  if (MergeGroup* group = Pick(&plan->groups, source)) {
    if (kind == 0) group->kind = static_cast<GroupKind>(small);
    if (kind == 1) group->first_member += small;
    if (kind == 2) group->num_members += small;
    if (kind == 3) group->position += small;
    if (kind == 4) group->bias = source->Number();
    if (kind == 5) group->count += small;
  }
  if (MergeMember* member = Pick(&plan->members, source)) {
    if (kind == 6) member->entry += small;
    if (kind == 7) member->key_weight = source->Number();
    if (kind == 8) member->value_weight = source->Number();
  }
  if (kind == 9) plan->drops.push_back(small);
  if (kind == 10) plan->marks.push_back(small);
  if (kind == 11) plan->num_entries += small;
}

MergePlan AnyPlan(Source* source) {
  MergePlan plan{.num_entries = source->Next<int8_t>()};
  plan.format = {source->Below(20), source->Below(20)};
  while (!source->empty()) {
    switch (source->Below(4)) {
      case 0:
        plan.groups.push_back({.kind = static_cast<GroupKind>(source->Next<uint8_t>()),
                               .first_member = source->Next<int32_t>(),
                               .num_members = source->Next<int32_t>(),
                               .position = source->Next<int32_t>(),
                               .bias = source->Next<float>(),
                               .count = source->Next<int32_t>()});
        break;
      case 1:
        plan.members.push_back({.entry = source->Next<int32_t>(),
                                .key_weight = source->Next<float>(),
                                .value_weight = source->Next<float>()});
        break;
      case 2:
        plan.drops.push_back(source->Next<int32_t>());
        break;
      default:
        plan.marks.push_back(source->Next<int32_t>());
    }
  }
  return plan;
}

void Try(Source source) {
  const int32_t mode = source.Below(8);
  const auto unit = MakeUnit(&source);
  const int32_t num_entries = unit->view.entries.size();
  if (mode == 7) return Judge(AnyPlan(&source), *unit, num_entries);
  const PolicyInfo& info = RegisteredPolicies()[mode % RegisteredPolicies().size()];
  MergePlan plan = info.make()->Plan(unit->view, MakeParams(&source, num_entries));
  const absl::Status status = ValidatePlan(plan, unit->view.entries, num_entries);
  if (!status.ok()) CheckFailed(__FILE__, __LINE__, std::string(status.message()));
  Judge(plan, *unit, num_entries);
  while (!source.empty()) {
    Change(&source, &plan);
    Judge(plan, *unit, num_entries);
  }
}

}  // namespace
}  // namespace condense

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  condense::Try({data, size});
  return 0;
}
