#include "cache/merge_plan.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

constexpr double kWeightTolerance = 1e-4;
constexpr float kBiasTolerance = 1e-4f;

template <typename... Args>
absl::Status Broken(const absl::FormatSpec<Args...>& format, const Args&... args) {
  return absl::InternalError("merge plan: " + absl::StrFormat(format, args...));
}

bool OneOf(int32_t value, std::initializer_list<int32_t> allowed) {
  return std::find(allowed.begin(), allowed.end(), value) != allowed.end();
}

class Validator {
 public:
  Validator(const MergePlan& plan, const UnitEntries& source)
      : plan_(plan), source_(source), used_(source.size(), false) {}

  absl::Status Check(int32_t max_entries) {
    RETURN_IF_ERROR(CheckTotals(max_entries));
    int32_t next_member = 0;
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      RETURN_IF_ERROR(CheckGroup(static_cast<int32_t>(g), next_member));
      next_member += plan_.groups[g].num_members;
    }
    if (next_member != static_cast<int32_t>(plan_.members.size()))
      return Broken("%d members belong to no group", plan_.members.size() - next_member);
    RETURN_IF_ERROR(CheckDrops());
    for (int32_t i = 0; i < source_.size(); ++i) {
      if (!used_[i]) return Broken("entry %d is not used", i);
    }
    return CheckMarks();
  }

 private:
  absl::Status CheckTotals(int32_t max_entries) const {
    if (plan_.num_entries != source_.size())
      return Broken("made for %d entries, the source has %d", plan_.num_entries, source_.size());
    if (static_cast<int64_t>(plan_.groups.size()) > max_entries)
      return Broken("%d entries come out, there is room for %d", plan_.groups.size(), max_entries);
    const StorageFormat& format = plan_.format;
    if (!OneOf(format.key_bits, {16, 8, 6, 4}))
      return Broken("keys of %d bits, not 16, 8, 6 or 4", format.key_bits);
    if (!OneOf(format.value_bits, {16, 8, 4, 3}))
      return Broken("values of %d bits, not 16, 8, 4 or 3", format.value_bits);
    return absl::OkStatus();
  }

  absl::Status CheckGroup(int32_t g, int32_t first_member) {
    const MergeGroup& group = plan_.groups[g];
    if (group.first_member != first_member)
      return Broken("group %d starts at member %d instead of %d", g, group.first_member,
                    first_member);
    const int64_t left = static_cast<int64_t>(plan_.members.size()) - first_member;
    if (group.num_members < 1 || group.num_members > left)
      return Broken("group %d has %d members of %d left", g, group.num_members, left);
    if (g > 0 && group.position < plan_.groups[g - 1].position)
      return Broken("group %d at position %d follows position %d", g, group.position,
                    plan_.groups[g - 1].position);
    for (const MergeMember& member : plan_.members_of(group)) {
      RETURN_IF_ERROR(Use(member.entry));
      if (group.num_members > 1 && source_.is_protected(member.entry))
        return Broken("group %d merges protected entry %d", g, member.entry);
    }
    RETURN_IF_ERROR(CheckWeights(g));
    return group.num_members == 1 ? CheckLone(g) : CheckMerged(g);
  }

  absl::Status Use(int32_t entry) {
    if (entry < 0 || entry >= source_.size())
      return Broken("entry %d of %d", entry, source_.size());
    if (used_[entry]) return Broken("entry %d is used twice", entry);
    used_[entry] = true;
    return absl::OkStatus();
  }

  absl::Status CheckWeights(int32_t g) const {
    const MergeGroup& group = plan_.groups[g];
    if (group.kind != GroupKind::kPivot && group.kind != GroupKind::kAverage)
      return Broken("group %d is of kind %d", g, static_cast<int>(group.kind));
    double keys = 0.0, values = 0.0;
    for (const MergeMember& member : plan_.members_of(group)) {
      // Written so that NaN fails.
      if (!(member.key_weight >= 0 && member.value_weight >= 0))
        return Broken("group %d weighs entry %d by %g, %g", g, member.entry, member.key_weight,
                      member.value_weight);
      keys += member.key_weight;
      values += member.value_weight;
    }
    if (!(std::abs(keys - 1) <= kWeightTolerance && std::abs(values - 1) <= kWeightTolerance))
      return Broken("weights of group %d sum to %g, %g", g, keys, values);
    if (group.kind == GroupKind::kPivot && plan_.members[group.first_member].key_weight != 1)
      return Broken("the pivot of group %d has key weight %g", g,
                    plan_.members[group.first_member].key_weight);
    return absl::OkStatus();
  }

  absl::Status CheckLone(int32_t g) const {
    const MergeGroup& group = plan_.groups[g];
    const int32_t entry = plan_.members[group.first_member].entry;
    if (group.kind != GroupKind::kPivot || group.position != source_.positions[entry] ||
        group.bias != source_.bias(entry) || group.count != source_.count(entry))
      return Broken("group %d changes entry %d that it only copies", g, entry);
    return absl::OkStatus();
  }

  absl::Status CheckMerged(int32_t g) const {
    const MergeGroup& group = plan_.groups[g];
    int32_t first = source_.positions[plan_.members[group.first_member].entry], last = first;
    const bool pivot = group.kind == GroupKind::kPivot;
    int64_t count = 0;
    for (const MergeMember& member : plan_.members_of(group)) {
      count += source_.count(member.entry);
      if (pivot) continue;
      first = std::min(first, source_.positions[member.entry]);
      last = std::max(last, source_.positions[member.entry]);
    }
    if (group.position < first || group.position > last)
      return Broken("group %d stands at position %d, outside [%d, %d]", g, group.position, first,
                    last);
    if (group.count != count || count > kMaxCount)
      return Broken("group %d counts %d tokens, its members %d, at most %d fit", g, group.count,
                    count, kMaxCount);
    if (!(std::abs(group.bias) <= kMaxBias + kBiasTolerance))
      return Broken("bias %g of group %d is beyond ln 16", group.bias, g);
    return absl::OkStatus();
  }

  absl::Status CheckDrops() {
    for (size_t i = 0; i < plan_.drops.size(); ++i) {
      const int32_t entry = plan_.drops[i];
      RETURN_IF_ERROR(Use(entry));
      if (source_.is_protected(entry)) return Broken("protected entry %d is dropped", entry);
      if (i > 0 && entry < plan_.drops[i - 1]) return Broken("drop %d is out of order", i);
    }
    return absl::OkStatus();
  }

  absl::Status CheckMarks() const {
    std::vector<bool> alone(source_.size(), false);
    for (const MergeGroup& group : plan_.groups) {
      if (group.num_members == 1) alone[plan_.members[group.first_member].entry] = true;
    }
    int32_t last = -1;
    for (const int32_t entry : plan_.marks) {
      if (entry <= last || entry >= source_.size())
        return Broken("mark of entry %d after %d", entry, last);
      if (!alone[entry] || source_.is_protected(entry))
        return Broken("entry %d is marked but merged, dropped or protected", entry);
      last = entry;
    }
    return absl::OkStatus();
  }

  const MergePlan& plan_;
  const UnitEntries& source_;
  std::vector<bool> used_;  // [n]
};

}  // namespace

std::string_view ShortfallName(Shortfall shortfall) {
  switch (shortfall) {
    case Shortfall::kNone:
      return "none";
    case Shortfall::kKeepsAll:
      return "keeps_all";
    case Shortfall::kTooShort:
      return "too_short";
    case Shortfall::kProtected:
      return "protected";
    case Shortfall::kThreshold:
      return "threshold";
    case Shortfall::kUnmarked:
      return "unmarked";
    case Shortfall::kQuota:
      return "quota";
    case Shortfall::kNoPartner:
      return "no_partner";
  }
  return "unknown";
}

absl::Status ValidatePlan(const MergePlan& plan, const UnitEntries& source, int32_t max_entries) {
  return Validator(plan, source).Check(max_entries);
}

}  // namespace condense
