#include "tools/format.h"

#include <cmath>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "engine/utf8.h"

namespace condense {
namespace {

bool IsControl(unsigned char byte) { return byte < 0x20 || byte == 0x7f; }

// U+0080..U+009F, which some terminals obey like the controls below 0x20.
bool IsHighControl(std::string_view text, size_t i, size_t length) {
  return length == 2 && static_cast<unsigned char>(text[i]) == 0xc2 &&
         static_cast<unsigned char>(text[i + 1]) < 0xa0;
}

std::string Escaped(unsigned char byte) {
  if (byte == '\n') return "\\n";
  if (byte == '\t') return "\\t";
  if (byte == '\r') return "\\r";
  return absl::StrFormat("\\x%02x", byte);
}

}  // namespace

std::string FormatBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (std::abs(value) >= 1024.0 && unit < 6) {
    value /= 1024.0;
    ++unit;
  }
  if (unit == 0) return absl::StrFormat("%d B", bytes);
  return absl::StrFormat("%.*f %s", std::abs(value) < 100 ? 1 : 0, value, kUnits[unit]);
}

std::string FormatCount(int64_t count) {
  const std::string digits = absl::StrFormat("%d", count);
  const size_t sign = count < 0 ? 1 : 0;
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string FormatNumber(double value) {
  if (!std::isfinite(value)) return absl::StrFormat("%f", value);
  const double magnitude = std::abs(value);
  if (magnitude >= 99.95) return absl::StrFormat("%.0f", value);
  if (magnitude >= 9.995) return absl::StrFormat("%.1f", value);
  return absl::StrFormat("%.2f", value);
}

std::string FormatSeconds(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds >= 3600) {
    const int64_t minutes = std::llround(seconds / 60);
    return absl::StrFormat("%d h %02d min", minutes / 60, minutes % 60);
  }
  if (seconds >= 60) {
    const int64_t whole = std::llround(seconds);
    return absl::StrFormat("%d min %02d s", whole / 60, whole % 60);
  }
  if (seconds >= 1) return FormatNumber(seconds) + " s";
  if (seconds >= 1e-3) return FormatNumber(seconds * 1e3) + " ms";
  return absl::StrFormat("%.0f us", seconds * 1e6);
}

std::string WithoutControls(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8CharacterSize(text.substr(i));
    const unsigned char byte = static_cast<unsigned char>(text[i]);
    const bool control = IsControl(byte) && byte != '\n' && byte != '\t';
    if (control || IsHighControl(text, i, length)) {
      out += "\xef\xbf\xbd";
    } else {
      out += text.substr(i, length == 0 ? 1 : length);
    }
    i += length == 0 ? 1 : length;
  }
  return out;
}

std::string OneLine(std::string_view text, size_t max_bytes) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8CharacterSize(text.substr(i));
    std::string piece;
    if (length == 0 || IsControl(static_cast<unsigned char>(text[i]))) {
      piece = Escaped(static_cast<unsigned char>(text[i]));
    } else if (IsHighControl(text, i, length)) {
      piece = Escaped(static_cast<unsigned char>(text[i])) +
              Escaped(static_cast<unsigned char>(text[i + 1]));
    } else {
      piece = std::string(text.substr(i, length));
    }
    if (out.size() + piece.size() > max_bytes) return out + "\xe2\x80\xa6";
    out += piece;
    i += length == 0 ? 1 : length;
  }
  return out;
}

}  // namespace condense
