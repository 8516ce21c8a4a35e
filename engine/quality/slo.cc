#include "engine/quality/slo.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

constexpr double kMost = 1e6;  // of values that are no share
constexpr double kWarningShare = 0.8;
constexpr absl::Duration kShortestWindow = absl::Seconds(1);
constexpr absl::Duration kLongestWindow = absl::Hours(24 * 365);

absl::Status Refuse(const std::string& term, const std::string& what, const std::string& rule) {
  return absl::InvalidArgumentError(
      absl::StrCat("slo term \"", term, "\": ", what, ", must be ", rule));
}

absl::StatusOr<Guard> ParseName(const std::string& term, const std::string& name) {
  std::string known;
  for (int i = 0; i < kNumGuards; ++i) {
    const Guard guard = static_cast<Guard>(i);
    if (name == SloName(guard)) return guard;
    absl::StrAppend(&known, known.empty() ? "" : ", ", SloName(guard));
  }
  return Refuse(term, absl::StrCat("its name is \"", name, "\""), absl::StrCat("one of ", known));
}

absl::StatusOr<double> ParseTime(const std::string& term, const std::string& value) {
  absl::Duration time;
  const bool parsed = absl::ParseDuration(value, &time);
  const double seconds = absl::ToDoubleSeconds(time);
  if (parsed && seconds > 0 && seconds <= kMost) return seconds;
  return Refuse(term, absl::StrCat("its limit is \"", value, "\""),
                "a time like 500ms or 1.5s, above 0 and at most 1000000s");
}

absl::StatusOr<double> ParseNumber(const std::string& term, const std::string& value,
                                   const GuardTraits& traits) {
  std::string_view digits = value;
  const bool percent = !digits.empty() && digits.back() == '%';
  if (percent) digits.remove_suffix(1);
  double number = 0;
  const bool parsed = absl::SimpleAtod(std::string(digits), &number);
  if (percent) number /= 100;
  const double most = traits.is_share ? 1.0 : kMost;
  // A floor of 1 would leave no room for a warning above it. Written so that NaN fails.
  const bool fits = traits.is_ceiling ? number <= most : number < most;
  if (parsed && number > 0 && fits) return number;
  return Refuse(term, absl::StrCat("its limit is \"", value, "\""),
                absl::StrCat("a number or a percentage like 1%, above 0 and ",
                             traits.is_ceiling ? "at most " : "below ", most));
}

absl::StatusOr<absl::Duration> ParseWindow(const std::string& term, const std::string& value) {
  absl::Duration window;
  const bool parsed = absl::ParseDuration(value, &window);
  if (parsed && window >= kShortestWindow && window <= kLongestWindow) return window;
  return Refuse(term, absl::StrCat("its window is \"", value, "\""),
                "a time like 5m, at least 1s and at most a year");
}

// "<= VALUE [over TIME]"
absl::StatusOr<SloTerm> ParseObjective(const std::string& term, Guard guard,
                                       std::string_view objective) {
  const GuardTraits& traits = TraitsOf(guard);
  const size_t sign_end = std::min(objective.find_first_not_of("<>="), objective.size());
  const std::string sign(objective.substr(0, sign_end));
  const std::string expected = traits.is_ceiling ? "<=" : ">=";
  if (sign != expected) {
    return Refuse(term, absl::StrCat("its sign is \"", sign, "\""),
                  absl::StrCat("\"", expected, "\""));
  }
  const std::string rest(objective.substr(sign_end));
  const std::vector<std::string> words =
      absl::StrSplit(rest, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
  const bool has_window = words.size() == 3 && words[1] == "over";
  if (words.size() != 1 && !has_window) {
    return Refuse(term,
                  absl::StrCat("behind its sign stands \"",
                               std::string(absl::StripAsciiWhitespace(rest)), "\""),
                  "LIMIT or LIMIT over TIME");
  }
  SloTerm parsed{.guard = guard};
  ASSIGN_OR_RETURN(parsed.limit, traits.is_time ? ParseTime(term, words[0])
                                                : ParseNumber(term, words[0], traits));
  if (has_window) {
    ASSIGN_OR_RETURN(parsed.window, ParseWindow(term, words[2]));
  }
  return parsed;
}

absl::StatusOr<SloTerm> ParseTerm(const std::string& term) {
  const size_t sign = term.find_first_of("<>=");
  if (sign == std::string::npos) {
    return Refuse(term, "it has no sign",
                  "NAME<=LIMIT or NAME>=LIMIT, then \"over TIME\" or nothing");
  }
  const std::string name(absl::StripAsciiWhitespace(term.substr(0, sign)));
  ASSIGN_OR_RETURN(const Guard guard, ParseName(term, name));
  return ParseObjective(term, guard, std::string_view(term).substr(sign));
}

}  // namespace

std::string SloName(Guard guard) {
  const bool is_latency = guard == Guard::kTtft || guard == Guard::kInterToken;
  return absl::StrCat(TraitsOf(guard).label, is_latency ? "_p99" : "");
}

absl::StatusOr<std::vector<SloTerm>> ParseSlo(std::string_view text) {
  std::vector<SloTerm> terms;
  const std::string all(text);
  if (absl::StripAsciiWhitespace(all).empty()) return terms;
  const std::vector<std::string> parts = absl::StrSplit(all, ',');
  for (const std::string& part : parts) {
    const std::string text_of_term(absl::StripAsciiWhitespace(part));
    ASSIGN_OR_RETURN(SloTerm term, ParseTerm(text_of_term));
    const bool repeated = std::any_of(terms.begin(), terms.end(), [&](const SloTerm& other) {
      return other.guard == term.guard;
    });
    if (repeated) {
      return Refuse(text_of_term, absl::StrCat(SloName(term.guard), " has a term already"),
                    "the only one of its name");
    }
    terms.push_back(term);
  }
  return terms;
}

void BindSlo(const SloTerm& term, GuardrailLimits* limits) {
  const GuardTraits& traits = TraitsOf(term.guard);
  const GuardrailLimits defaults;
  const GuardLimit& usual = defaults.*traits.limit;
  GuardLimit& limit = limits->*traits.limit;
  limit.limit = term.limit;
  if (traits.is_ceiling) {
    limit.warning = term.limit * (usual.bound ? usual.warning / usual.limit : kWarningShare);
  } else {
    limit.warning = (term.limit + 1) / 2;
  }
  limit.bound = true;
  if (term.window.has_value()) limit.window = *term.window;
}

}  // namespace condense
