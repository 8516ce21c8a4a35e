#include "tools/compression_flags.h"

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace condense {
void CompressionFlags::AddTo(CLI::App* command, const std::string& unset) {
  const auto cache = [&](const char* name, auto& value, const std::string& help) {
    command->add_option(name, value, help)->group("Cache");
  };
  cache("--preset", preset,
        absl::StrFormat("How far the cache is compacted: %s [%s]",
                        absl::StrJoin(PresetNames(), ", "), unset));
  cache("--policy", policy,
        absl::StrFormat("How entries are merged: %s [the preset's]",
                        absl::StrJoin(PolicyNames(), ", ")));
  cache(
      "--ratio", ratio,
      absl::StrFormat("Target: bytes in 16 bits by bytes held, 1 to %g [the preset's]", kMaxRatio));
}

v1::Compression CompressionFlags::ToMessage() const {
  v1::Compression message;
  if (preset) message.set_preset(*preset);
  if (policy) message.set_policy(*policy);
  if (ratio) message.set_ratio(*ratio);
  return message;
}

absl::StatusOr<Compression> CompressionFlags::Make() const {
  if (!given()) return Compression();
  const auto made = MakeCompression(preset.value_or("balanced"), policy, ratio);
  if (made.ok()) return made;
  return absl::Status(
      made.status().code(),
      absl::StrReplaceAll(std::string(made.status().message()), {{"compression.", "--"}}));
}

}  // namespace condense
