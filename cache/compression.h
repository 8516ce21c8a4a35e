#ifndef CONDENSE_CACHE_COMPRESSION_H_
#define CONDENSE_CACHE_COMPRESSION_H_

// How far a sequence's cache is to be compacted, and with what: presets, and what a request may
// change of them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/kv_block.h"

namespace condense {

// A value; immutable once a sequence runs with it.
struct Compression {
  std::string preset = "off";  // or "custom", where policy or ratio were given
  std::string policy = "none";
  double ratio = 1.0;  // target: bytes in 16 bits / bytes held, sliding-window layers left out
  // Formats that a unit may take, widest first: the widest that reaches the ratio without a merge,
  // else the last. Empty: 16 bits, nothing is ever compacted.
  std::vector<KvFormat> formats;
  bool centred = true;           // subtract mean keys from narrow keys
  bool keeps_window = true;      // the sinks and the newest tokens stay in 16 bits
  int32_t min_tokens = 512;      // shorter sequences only change their format
  int32_t cluster_window = 128;  // tokens
  int32_t max_members = 8;
  float cosine = 0.87f;  // lowest that policies merge at
  // A swap whose held-out queries err more is refused. Relative error of the outputs, and absolute
  // error of the log-sum-exp; means over queries.
  double max_output_error = 0.05;
  double max_log_mass_error = 0.05;

  bool active() const { return !formats.empty(); }
};

// "off", "lossless", "light", "balanced", "aggressive": by ascending ratio.
const std::vector<std::string>& PresetNames();
// The preset, changed as asked: the format follows from ratio and policy (narrower where the policy
// merges nothing), the limits from the ratio; a ratio of 1 compacts nothing. INVALID_ARGUMENT
// naming field, value and what is known or allowed: an unknown preset or policy; a ratio outside
// [1, kMaxRatio], not finite; a policy or ratio beside preset "off".
inline constexpr double kMaxRatio = 16.0;
absl::StatusOr<Compression> MakeCompression(std::string_view preset,
                                            std::optional<std::string_view> policy = std::nullopt,
                                            std::optional<double> ratio = std::nullopt);

}  // namespace condense

#endif  // CONDENSE_CACHE_COMPRESSION_H_
