#ifndef CONDENSE_CACHE_QUERY_EVIDENCE_H_
#define CONDENSE_CACHE_QUERY_EVIDENCE_H_

// Makes evidence of sampled queries: what each of them gave to the entries it could see.

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "cache/compaction_job.h"
#include "cache/entry_stats.h"
#include "cache/unit_ops.h"

namespace condense {

// Observes, query by query and in order, the largest probability that any head of the group gave to
// each of the entries [first, first + stats->size()) of the list that the query could see. Queries
// that saw no entry of the list are passed over; those that saw none of the range are not asked.
// Errors: the backend's. REQUIRES: the list has these entries.
absl::Status ObserveQueries(std::span<const KvBlockRef> list, int32_t first,
                            const QuerySamples& samples, UnitOps* ops, EntryStats* stats);

// How many of the samples saw the whole list of so many entries.
int32_t CountWhole(const QuerySamples& samples, int32_t num_entries);

}  // namespace condense

#endif  // CONDENSE_CACHE_QUERY_EVIDENCE_H_
