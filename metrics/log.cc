#include "metrics/log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <array>
#include <memory>

namespace condense {
namespace {

struct NamedLevel {
  const char* name;
  spdlog::level::level_enum level;
};
constexpr std::array<NamedLevel, 5> kLevels = {{{"debug", spdlog::level::debug},
                                                {"info", spdlog::level::info},
                                                {"warning", spdlog::level::warn},
                                                {"error", spdlog::level::err},
                                                {"off", spdlog::level::off}}};

// Never destroyed: threads may still log while the process leaves main.
spdlog::logger& Logger() {
  static spdlog::logger* const logger = [] {
    auto* made = new spdlog::logger("condense", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_formatter(std::make_unique<spdlog::pattern_formatter>(
        "%Y-%m-%dT%H:%M:%S.%eZ %l %t %v", spdlog::pattern_time_type::utc));
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  return kLevels[static_cast<size_t>(level)].level;
}

std::string EscapeControlCharacters(const std::string& text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppendFormat(&escaped, "\\x%02x", byte);
    } else {
      escaped.push_back(c);
    }
  }
  return escaped;
}

}  // namespace

absl::Status SetLogLevel(const std::string& name) {
  for (const NamedLevel& known : kLevels) {
    if (name != known.name) continue;
    Logger().set_level(known.level);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "log level \"%s\" is unknown: it must be debug, info, warning, error or off", name));
}

bool LogEnabled(LogLevel level) { return Logger().should_log(ToSpdlog(level)); }

void LogRecord(LogLevel level, const std::string& message) {
  Logger().log(ToSpdlog(level), spdlog::string_view_t(EscapeControlCharacters(message)));
}

}  // namespace condense
