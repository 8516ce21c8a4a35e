#ifndef CONDENSE_CACHE_MERGE_PLAN_H_
#define CONDENSE_CACHE_MERGE_PLAN_H_

// A merge plan: what becomes of each entry of a unit's range. A value; nothing here moves data.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "cache/unit_entries.h"

namespace condense {

inline constexpr float kMaxBias = 2.7725887f;  // ln 16
inline constexpr int32_t kMaxCount = 255;      // a block stores counts as bytes

enum class GroupKind : uint8_t {
  kPivot,    // the first member's key stays bit for bit; the others give value and mass
  kAverage,  // the key is the mean of the members' keys, each turned to the group's position
};

struct MergeMember {
  int32_t entry = 0;        // of the source range
  float key_weight = 0.0f;  // kPivot: 1 for the pivot, 0 for the others
  float value_weight = 0.0f;
};

// One entry of the result. A group of one member is an entry that is copied as it is.
struct MergeGroup {
  GroupKind kind = GroupKind::kPivot;
  int32_t first_member = 0;  // in MergePlan::members
  int32_t num_members = 0;
  int32_t position = 0;
  float bias = 0.0f;
  int32_t count = 0;  // tokens represented
};

// Bits per component of keys and values: {16, 8, 6, 4} and {16, 8, 4, 3}.
struct StorageFormat {
  int32_t key_bits = 16;
  int32_t value_bits = 16;

  bool operator==(const StorageFormat&) const = default;
};

// Why a plan leaves more than was asked for.
enum class Shortfall : uint8_t {
  kNone,       // it does not
  kKeepsAll,   // the policy removes nothing
  kTooShort,   // sequences this short only change their format
  kProtected,  // whatever may go is gone
  kThreshold,  // no entries alike enough are left
  kUnmarked,   // the pool is not full enough, or too few entries have been marked long enough
  kQuota,      // the share that one cycle may remove is used up
  kNoPartner,  // no neighbour could take more mass
};
std::string_view ShortfallName(Shortfall shortfall);  // "none", "keeps_all"…

struct MergePlan {
  int32_t num_entries = 0;         // of the source range
  StorageFormat format;            // of what is not protected
  std::vector<MergeGroup> groups;  // the result in logical order: positions ascend
  std::vector<MergeMember> members;
  std::vector<int32_t> drops;  // ascending: entries that leave without a trace
  std::vector<int32_t> marks;  // ascending: kept for now, candidates to go in a later cycle
  float cosine = 0.0f;         // the lowest that joined a cluster; 0: no clusters were sought
  int32_t target_entries = 0;  // what was asked for; num_entries where nothing was
  Shortfall shortfall = Shortfall::kNone;

  std::span<const MergeMember> members_of(const MergeGroup& group) const {
    return std::span(members).subspan(group.first_member, group.num_members);
  }
};

// OK if the plan can be carried out on `source` without harm: every entry is used exactly once;
// weights sum to one; protected entries stand alone and unchanged; biases are at most ln 16; no
// more than max_entries come out; positions ascend. Otherwise INTERNAL, naming the broken rule, the
// place and the value. Reads nothing out of bounds, whatever the plan holds. Cost: O(n).
absl::Status ValidatePlan(const MergePlan& plan, const UnitEntries& source, int32_t max_entries);

}  // namespace condense

#endif  // CONDENSE_CACHE_MERGE_PLAN_H_
