#ifndef CONDENSE_CACHE_NOTCH_H_
#define CONDENSE_CACHE_NOTCH_H_

// What guardrails may change of a compression that is in force. docs/guardrails.md, "Notches".

#include <cstdint>

#include "cache/compression.h"

namespace condense {

inline constexpr double kLeastLoweredRatio = 1.9;  // what 8 bits reach
inline constexpr double kMostRaised = 2.0;         // of the ratio, as a multiple of it

// `compression`, with another target and other formats. Positive notches give quality back: each
// takes a fifth off the ratio and widens formats, values before keys, and never asks for more
// merges than the one before; the ratio does not fall below kLeastLoweredRatio. Negative ones save
// memory: each adds a quarter to the ratio, up to kMostRaised and kMaxRatio; formats and the lowest
// cosine stay. A ratio that is not above kLeastLoweredRatio stays what it is.
Compression AtNotch(const Compression& compression, int32_t notches);

}  // namespace condense

#endif  // CONDENSE_CACHE_NOTCH_H_
