#ifndef CONDENSE_SERVER_CONVERT_COMPRESSION_H_
#define CONDENSE_SERVER_CONVERT_COMPRESSION_H_

// Compression: messages -> engine types and back, and what the flags of the same names say.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "condense/v1/admin.pb.h"
#include "condense/v1/common.pb.h"
#include "condense/v1/info.pb.h"
#include "engine/config.h"
#include "engine/engine.h"

namespace condense {

// What a policy or a ratio changes where no preset is named; also the default of --preset.
inline constexpr char kDefaultPreset[] = "balanced";

// Nothing if the message sets no field. `cluster_window`: of what the server makes of presets.
// INVALID_ARGUMENT naming field (as in compression.ratio), value and limits.
absl::StatusOr<std::optional<Compression>> ToCompression(const v1::Compression& message,
                                                         int32_t cluster_window);
// The same of flags; `policy` "" and `ratio` 0: the preset's own.
absl::StatusOr<Compression> CompressionOfFlags(const std::string& preset, const std::string& policy,
                                               double ratio, int32_t cluster_window);

// What SetCompressionRequest.mode asks for; nothing: "auto". INVALID_ARGUMENT naming value and what
// is known.
absl::StatusOr<std::optional<GuardrailMode>> ToForcedMode(const std::string& mode);

// Threads: all are pure.
void FillSwaps(const SwapTotals& swaps, v1::SwapCounts* message);
void FillCompressionState(const Compression& compression, bool paused, const EngineLoad& load,
                          v1::CompressionState* message);
// One for each guardrail; `limits` are what they are judged by.
void FillGuardReadings(const GuardReports& reports, const GuardrailLimits& limits,
                       google::protobuf::RepeatedPtrField<v1::GuardReading>* messages);
// Bytes of live sequences in 16 bits by the bytes they hold; 1 where there are none.
double HeldRatio(const EngineLoad& load);

}  // namespace condense

#endif  // CONDENSE_SERVER_CONVERT_COMPRESSION_H_
