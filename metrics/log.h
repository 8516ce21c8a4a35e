#ifndef CONDENSE_METRICS_LOG_H_
#define CONDENSE_METRICS_LOG_H_

// The process's log: one line per record on stderr, with UTC time, level and thread.
//
// Never log text, token ids or messages of a request, at any level: name a request by its id.
// Arguments are formatted as by absl::StrFormat and only if the level is enabled. Control
// characters are escaped, so a record is always one line whatever a client put into an id.
// Threads: all functions are thread-safe.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace condense {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// `name`: debug, info (in force until the first call), warning, error or off; else
// INVALID_ARGUMENT, and the level stays.
absl::Status SetLogLevel(const std::string& name);
bool LogEnabled(LogLevel level);
// Writes a record as it is, if `level` is enabled.
void LogRecord(LogLevel level, const std::string& message);

template <typename... Args>
void Log(LogLevel level, const absl::FormatSpec<Args...>& format, const Args&... args) {
  if (LogEnabled(level)) LogRecord(level, absl::StrFormat(format, args...));
}
template <typename... Args>
void LogDebug(const absl::FormatSpec<Args...>& format, const Args&... args) {
  Log(LogLevel::kDebug, format, args...);
}
template <typename... Args>
void LogInfo(const absl::FormatSpec<Args...>& format, const Args&... args) {
  Log(LogLevel::kInfo, format, args...);
}
template <typename... Args>
void LogWarning(const absl::FormatSpec<Args...>& format, const Args&... args) {
  Log(LogLevel::kWarning, format, args...);
}
template <typename... Args>
void LogError(const absl::FormatSpec<Args...>& format, const Args&... args) {
  Log(LogLevel::kError, format, args...);
}

}  // namespace condense

#endif  // CONDENSE_METRICS_LOG_H_
