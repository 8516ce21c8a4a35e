#include "cache/notch.h"

#include <algorithm>
#include <cmath>

namespace condense {
namespace {

constexpr double kNotch = 0.8;
constexpr int kWidest = 8;  // bits; 16 would be no compaction

// The least bits that keys and values have at a notch; beyond the last the formats stay.
struct LeastBits {
  int keys, values;
};
constexpr LeastBits kLeastBits[] = {{0, 0}, {0, 4}, {6, 4}, {kWidest, kWidest}};
constexpr int32_t kLastFormatNotch = static_cast<int32_t>(std::size(kLeastBits)) - 1;

KvFormat Widened(KvFormat format, int32_t notches) {
  const LeastBits& least = kLeastBits[std::min(notches, kLastFormatNotch)];
  // All widths that come about exist.
  return MakeKvFormat(std::max(KvKeyBits(format), least.keys),
                      std::max(KvValueBits(format), least.values))
      .value();
}

int EntryBits(KvFormat format) { return KvKeyBits(format) + KvValueBits(format); }

// What wider entries take comes off the ratio: it must not be made up for by more merges.
double LoweredRatio(double ratio, KvFormat narrowest, int32_t notches) {
  int bits = EntryBits(narrowest);
  for (int32_t n = 1; n <= notches && ratio > kLeastLoweredRatio; ++n) {
    const int wider = EntryBits(Widened(narrowest, n));
    ratio *= std::min(kNotch, static_cast<double>(bits) / wider);
    bits = wider;
  }
  return std::max(ratio, kLeastLoweredRatio);
}

}  // namespace

Compression AtNotch(const Compression& compression, int32_t notches) {
  Compression changed = compression;
  if (!compression.active()) return changed;
  if (notches < 0 && compression.ratio > kLeastLoweredRatio) {
    const double most = std::min(kMostRaised * compression.ratio, kMaxRatio);
    changed.ratio = std::min(compression.ratio * std::pow(kNotch, notches), most);
  }
  if (notches <= 0) return changed;
  if (compression.ratio > kLeastLoweredRatio) {
    changed.ratio = LoweredRatio(compression.ratio, compression.formats.back(), notches);
  }
  for (KvFormat& format : changed.formats) format = Widened(format, notches);
  return changed;
}

}  // namespace condense
