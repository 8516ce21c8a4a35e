#include "cache/query_evidence.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

// Below this share, what is left of single-precision masses after scaling could be rounded to zero.
constexpr double kLeastShare = 1e-12;

std::vector<KvBlockRef> Prefix(std::span<const KvBlockRef> list, int32_t num_entries) {
  std::vector<KvBlockRef> prefix;
  for (int32_t left = num_entries; left > 0; left -= prefix.back().count) {
    prefix.push_back(list[prefix.size()]);
    prefix.back().count = static_cast<uint16_t>(std::min<int32_t>(left, prefix.back().count));
  }
  return prefix;
}

double Sum(const float* x, int32_t n) {
  // Side by side: a single sum could not be vectorised without reordering additions.
  constexpr int32_t kSums = 8;
  double sums[kSums] = {};
  int32_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int32_t lane = 0; lane < kSums; ++lane) sums[lane] += x[i + lane];
  }
  for (; i < n; ++i) sums[0] += x[i];
  return std::accumulate(sums, sums + kSums, 0.0);
}

class Observer {
 public:
  Observer(std::span<const KvBlockRef> list, int32_t first, const QuerySamples& samples,
           UnitOps* ops, EntryStats* stats)
      : list_(list),
        first_(first),
        samples_(samples),
        ops_(ops),
        stats_(stats),
        num_entries_(CountEntries(list)) {
    CHECK(first >= 0 && stats->size() <= num_entries_ - first);
  }

  // Without asking, if the query saw nothing of the range: false if it did.
  bool PassBlind(int32_t query) {
    const int32_t visible = Visible(query);
    if (visible > first_) return false;
    if (visible > 0) stats_->Observe({}, visible);
    return true;
  }

  // Queries that stand together see almost the same entries: they are asked together about all that
  // one of them saw, and the masses of the others are scaled to what they saw. A query that gives
  // nearly everything to entries of its future is asked once more, alone.
  absl::Status Observe(int32_t first, int32_t num, QueryFindings* findings) {
    int32_t seen = 0;
    for (int32_t i = first; i < first + num; ++i) seen = std::max(seen, Visible(i));
    RETURN_IF_ERROR(ops_->Evaluate(
        Prefix(list_, seen), samples_.q.data() + int64_t{first} * ops_->group() * ops_->head_dim(),
        num, UnitOps::kMasses, findings));
    for (int32_t i = 0; i < num; ++i) {
      if (PassBlind(first + i)) continue;
      if (TakeMaxima(*findings, i, Visible(first + i))) {
        stats_->Observe(maxima_, Visible(first + i));
      } else {
        QueryFindings alone;
        RETURN_IF_ERROR(Observe(first + i, 1, &alone));
      }
    }
    return absl::OkStatus();
  }

 private:
  int32_t Visible(int32_t query) const {
    return std::clamp(samples_.visible[query], 0, num_entries_);
  }

  // The group's largest probabilities of the range's entries among the first `visible`; false if
  // they cannot be told from these findings.
  bool TakeMaxima(const QueryFindings& findings, int32_t query, int32_t visible) {
    const int32_t n = std::min(visible - first_, stats_->size());
    maxima_.assign(n, 0.0f);
    for (int32_t head = 0; head < ops_->group(); ++head) {
      const float* mass = findings.mass_of(query * ops_->group() + head);
      float scale = 1.0f;
      if (visible < findings.num_entries) {
        const double share = Sum(mass, visible);
        // Written so that NaN is asked again, where it counts as it is.
        if (!(share >= kLeastShare)) return false;
        scale = static_cast<float>(1.0 / share);
      }
      mass += first_;
      for (int32_t e = 0; e < n; ++e) maxima_[e] = std::max(maxima_[e], mass[e] * scale);
    }
    return true;
  }

  const std::span<const KvBlockRef> list_;
  const int32_t first_;
  const QuerySamples& samples_;
  UnitOps* const ops_;
  EntryStats* const stats_;
  const int32_t num_entries_;
  std::vector<float> maxima_;
};

}  // namespace

absl::Status ObserveQueries(std::span<const KvBlockRef> list, int32_t first,
                            const QuerySamples& samples, UnitOps* ops, EntryStats* stats) {
  Observer observer(list, first, samples, ops, stats);
  QueryFindings findings;
  int32_t query = 0;
  while (query < samples.size() && observer.PassBlind(query)) ++query;
  const int32_t at_once = ops->queries_at_once();
  for (; query < samples.size(); query += at_once) {
    RETURN_IF_ERROR(observer.Observe(query, std::min(at_once, samples.size() - query), &findings));
  }
  return absl::OkStatus();
}

int32_t CountWhole(const QuerySamples& samples, int32_t num_entries) {
  return static_cast<int32_t>(
      std::count_if(samples.visible.begin(), samples.visible.end(),
                    [num_entries](int32_t visible) { return visible >= num_entries; }));
}

}  // namespace condense
