#include "cache/policy.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr double kScaleBytes = 2.0;
constexpr double kSideBytes = 5.0;  // bias f16, position u16, count u8

double VectorBytes(int32_t bits, int32_t head_dim) {
  return bits * head_dim / 8.0 + (bits < 16 ? kScaleBytes : 0.0);
}

int32_t NumProtected(const UnitEntries& entries) {
  int32_t count = 0;
  for (int32_t i = 0; i < entries.size(); ++i) count += entries.is_protected(i);
  return count;
}

bool HoldsMerged(const UnitEntries& entries) {
  for (int32_t i = 0; i < entries.size(); ++i) {
    if (entries.count(i) != 1 || entries.bias(i) != 0) return true;
  }
  return false;
}

// Bytes of the protected entries, which stay in 16 bits, and of what is asked beside them.
struct Budget {
  int32_t num_entries;
  int32_t num_protected;
  double bytes_16bit;  // of one entry
  bool holds_merged;
  double target_bytes;

  double Bytes(int32_t num_left, const FormatCost& cost) const {
    const bool merged = holds_merged || num_left < num_entries;
    return num_protected * bytes_16bit +
           (num_left - num_protected) * (merged ? cost.merged_bytes : cost.plain_bytes);
  }
  // The most entries that keep within the target; fewer than are protected if it cannot be reached.
  int32_t Entries(const FormatCost& cost) const {
    if (num_entries == 0 || Bytes(num_entries, cost) <= target_bytes) return num_entries;
    const double room =
        std::floor((target_bytes - num_protected * bytes_16bit) / cost.merged_bytes);
    return static_cast<int32_t>(std::clamp(num_protected + room, 0.0, num_entries - 1.0));
  }
};

Budget MakeBudget(const UnitView& view, double target_bytes) {
  return {.num_entries = view.entries.size(),
          .num_protected = NumProtected(view.entries),
          .bytes_16bit = MakeFormatCost({}, view.head_dim).plain_bytes,
          .holds_merged = HoldsMerged(view.entries),
          .target_bytes = target_bytes};
}

}  // namespace

FormatCost MakeFormatCost(StorageFormat format, int32_t head_dim) {
  const double plain =
      VectorBytes(format.key_bits, head_dim) + VectorBytes(format.value_bits, head_dim);
  return {.format = format, .plain_bytes = plain, .merged_bytes = plain + kSideBytes};
}

double PlanBytes(const MergePlan& plan, const UnitView& view, const FormatCost& cost) {
  return MakeBudget(view, 0).Bytes(static_cast<int32_t>(plan.groups.size()), cost);
}

MergePlan Policy::Plan(const UnitView& view, const PolicyParams& params) const {
  const int32_t n = view.entries.size();
  CHECK(view.evidence != nullptr && view.evidence->size() == n);
  CHECK(!needs_keys() || static_cast<int64_t>(view.keys.size()) == int64_t{n} * view.head_dim);
  std::vector<FormatCost> formats = params.formats;
  if (formats.empty()) formats.push_back(MakeFormatCost({}, view.head_dim));

  FormatCost cost = formats.back();
  int32_t target = n;
  if (params.target_bytes > 0) {
    const Budget budget = MakeBudget(view, params.target_bytes);
    if (tries_formats_first()) {
      const auto fits = std::find_if(formats.begin(), formats.end(), [&](const FormatCost& wider) {
        return budget.Entries(wider) == n;
      });
      if (fits != formats.end()) cost = *fits;
    }
    target = budget.Entries(cost);
  }
  target = std::min(target, std::max(params.max_entries, 0));

  const std::vector<float> masses = ObservedMasses(*view.evidence);
  const bool is_short = view.entries.protection.end_position < params.min_tokens;
  MergePlan plan;
  if (is_short || n == 0 || (target == n && tries_formats_first())) {
    plan = MergeBuilder(view.entries, masses, GroupKind::kPivot).Build();
    plan.shortfall = Shortfall::kTooShort;
  } else {
    Task task{.view = &view, .params = &params, .masses = masses};
    if (target < n || params.target_bytes > 0) task.target_entries = target;
    plan = Merge(task);
  }
  plan.format = cost.format;
  plan.target_entries = target;
  if (static_cast<int32_t>(plan.groups.size()) <= target) plan.shortfall = Shortfall::kNone;
  DCHECK(plan.shortfall != Shortfall::kNone || static_cast<int32_t>(plan.groups.size()) <= target);
  return plan;
}

}  // namespace condense
