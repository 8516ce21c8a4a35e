#include "tools/status_view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "engine/quality/guardrail_limits.h"
#include "tools/answer.h"
#include "tools/format.h"
#include "tools/text_table.h"
#include "tools/text_width.h"

namespace condense {
namespace {

constexpr size_t kLabelWidth = 14;
// Below it text gets lines of its own, under the label.
constexpr size_t kNarrow = 2 * kLabelWidth;
constexpr size_t kMaxTextBytes = 2000;
constexpr double kMaxBytes = 9e18;

// Null for one that this program does not know.
const GuardTraits* FindTraits(const std::string& label) {
  for (int i = 0; i < kNumGuards; ++i) {
    const GuardTraits& traits = TraitsOf(static_cast<Guard>(i));
    if (label == traits.label) return &traits;
  }
  return nullptr;
}

// Collects lines no wider than the terminal.
class Lines {
 public:
  explicit Lines(size_t width) : width_(width) {}

  // A label and its text, which goes on below itself.
  void AddText(const std::string& label, const std::string& text) {
    const size_t indent = width_ < kNarrow ? 0 : kLabelWidth;
    std::string before = label;
    if (indent == 0) Add(label);
    for (const std::string& line : WrapToWidth(OneLine(text, kMaxTextBytes), width_ - indent)) {
      before.resize(indent, ' ');
      Add(before + line);
      before.clear();
    }
  }
  void Add(const std::string& line) {
    absl::StrAppend(&lines_, CutToWidth(OneLine(line, kMaxTextBytes), width_), "\n");
  }
  void AddTable(const TextTable& table) {
    const std::string text = table.ToString();
    const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
    for (const std::string& line : lines) Add(line);
  }

  const std::string& text() const { return lines_; }

 private:
  const size_t width_;
  std::string lines_;
};

std::string ShowNumber(double value) {
  const double size = std::abs(value);
  if (size >= 100) return absl::StrFormat("%.0f", value);
  return size >= 0.1 ? absl::StrFormat("%.3g", value) : absl::StrFormat("%.2g", value);
}

// Without the unit, which the value has: the table is to fit into 80 cells.
std::string ShowBounds(const v1::GuardReading& reading, double scale) {
  if (!reading.has_lower() && !reading.has_upper()) return "-";
  const std::string lower = reading.has_lower() ? ShowNumber(reading.lower() * scale) : "?";
  const std::string upper = reading.has_upper() ? ShowNumber(reading.upper() * scale) : "?";
  return lower + ".." + upper;
}

std::string ShowSamples(const v1::GuardReading& reading) {
  if (!reading.has_value() || reading.samples() >= reading.min_samples()) {
    return FormatCount(reading.samples());
  }
  return FormatCount(reading.samples()) + "/" + FormatCount(reading.min_samples());
}

std::vector<std::string> ReadingRow(const v1::GuardReading& reading) {
  const GuardTraits* traits = FindTraits(reading.guard());
  const double scale = traits == nullptr ? 1 : traits->unit_scale;
  const std::string unit = traits == nullptr ? "" : traits->unit;
  const auto show = [&](double value) { return ShowNumber(value * scale) + unit; };
  const std::string beyond = traits == nullptr ? "" : traits->is_ceiling ? "> " : "< ";
  return {reading.guard(),
          reading.level(),
          reading.has_value() ? show(reading.value()) : "-",
          ShowBounds(reading, scale),
          reading.has_warning() ? beyond + show(reading.warning()) : "-",
          reading.has_limit() ? beyond + show(reading.limit()) : "-",
          ShowSamples(reading)};
}

void AddReadings(const v1::GetServerInfoResponse& server, Lines* lines) {
  if (server.compression_mode_reason().empty()) {
    lines->AddText("guardrails", "off: the server has no guard, or compacts nothing");
    return;
  }
  using Align = TextTable::Align;
  TextTable table({Align::kLeft, Align::kLeft, Align::kRight, Align::kRight, Align::kRight,
                   Align::kRight, Align::kRight});
  table.Add({"guardrail", "level", "value", "bounds", "warning", "limit", "samples"});
  for (const v1::GuardReading& reading : server.guard_readings()) table.Add(ReadingRow(reading));
  lines->AddTable(table);
}

struct ArenaPart {
  const char* name;
  char cell;
  double bytes;  // a server may say anything, and sums of anything do not fit into integers
};

std::array<ArenaPart, 4> ArenaParts(const v1::GetLoadResponse& load) {
  const auto part = [](const char* name, char cell, double bytes) {
    return ArenaPart{name, cell, std::clamp(bytes, 0.0, kMaxBytes)};
  };
  const auto used = static_cast<double>(load.kv_bytes_used());
  const auto staging = static_cast<double>(load.kv_bytes_staging());
  const auto slack = static_cast<double>(load.kv_bytes_slack());
  const auto total = static_cast<double>(load.kv_bytes_total());
  return {part("used", '#', used), part("staging", '+', staging), part("slack", '=', slack),
          part("free", '.', total - used - staging - slack)};
}

std::string DescribeArena(const v1::GetLoadResponse& load) {
  std::string out;
  for (const ArenaPart& part : ArenaParts(load)) {
    absl::StrAppend(&out, out.empty() ? "" : ", ", std::string(1, part.cell), " ",
                    FormatBytes(std::llround(part.bytes)), " ", part.name);
  }
  return out;
}

void AddLoad(const v1::GetLoadResponse& load, Lines* lines) {
  lines->AddText("requests",
                 absl::StrFormat("%s running, %s queued with %s tokens, %s preemptions",
                                 FormatCount(load.running()), FormatCount(load.queued()),
                                 FormatCount(load.queued_tokens()),
                                 FormatCount(static_cast<int64_t>(load.preemptions()))));
  lines->AddText("speed", FormatNumber(load.tokens_per_second()) + " tokens/s over ten seconds");
  lines->AddText("cache ratio", absl::StrFormat("%.2f now, %s tokens", load.kv_ratio(),
                                                FormatCount(load.logical_tokens())));
  lines->AddText("swaps", DescribeSwaps(load.swaps(), load.compaction_jobs_out()));
  lines->AddText("arena", DescribeArena(load));
}

}  // namespace

std::string ArenaBar(const v1::GetLoadResponse& load, int width) {
  const auto parts = ArenaParts(load);
  double total = 0;
  for (const ArenaPart& part : parts) total += part.bytes;
  std::string bar;
  double sum = 0;
  for (const ArenaPart& part : parts) {
    sum += part.bytes;
    const double end = total > 0 ? sum / total * width : 0;
    bar.resize(std::max(bar.size(), static_cast<size_t>(std::lround(end))), part.cell);
  }
  bar.resize(width, '.');
  return bar;
}

std::string StatusView(const ServerStatus& status, const std::string& address, absl::Time now,
                       int width) {
  const v1::GetServerInfoResponse& server = status.server;
  Lines lines(static_cast<size_t>(width));
  lines.AddText("server",
                absl::StrCat(address, ", ", status.model.name(), ", ",
                             absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", now, absl::UTCTimeZone())));
  lines.AddText("state",
                StateName(server.state()) + ", up " + FormatSeconds(server.uptime_seconds()));
  lines.AddText("mode", DescribeMode(server.compression_mode(), server.compression_mode_reason()));
  lines.AddText("new requests",
                absl::StrFormat("preset %s, policy %s, ratio %.2f", server.compression_preset(),
                                server.compression_policy(), server.compression_ratio()));
  AddLoad(status.load, &lines);
  lines.Add(ArenaBar(status.load, width));
  AddReadings(server, &lines);
  return lines.text();
}

}  // namespace condense
