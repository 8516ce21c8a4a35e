#include "engine/probe/probe_budget.h"

#include <algorithm>

namespace condense {
namespace {

constexpr double kFade = 0.98;         // of the past, with every step
constexpr double kLeastSteps = 8.0;    // before, a line could point anywhere
constexpr double kLeastVariance = 16;  // of a step's tokens, likewise
// Of a step's mean time per token: a token more is never free, and cheaper than the others
// together.
constexpr double kLeastCost = 0.1;
constexpr double kMostCredit = 20e-3;  // seconds; a burst of probes would be felt
// Rows are computed in blocks: beside so few others one more may cost as much as several.
constexpr int32_t kFewTokens = 32;

}  // namespace

void ProbeBudget::Stepped(absl::Duration time, int32_t tokens, int32_t probed) {
  // The clock of steps may be set back: such a step says nothing.
  if (tokens <= 0 || time <= absl::ZeroDuration()) return;
  const double seconds = absl::ToDoubleSeconds(time);
  Learn(seconds, tokens);
  const bool few = tokens <= kFewTokens && tokens != probed;
  cost_ = few ? seconds / tokens : LearnedCost();
  const double took = tokens == probed ? seconds : std::min(seconds, cost_ * probed);
  spent_ += absl::Seconds(took);
  if (tokens == probed) return;
  credit_ = std::min(std::max(kMostCredit, cost_), credit_ + share_ * seconds - took);
}

void ProbeBudget::Learn(double seconds, double tokens) {
  for (double* sum : {&weight_, &x_, &y_, &xx_, &xy_}) *sum *= kFade;
  weight_ += 1.0;
  x_ += tokens;
  y_ += seconds;
  xx_ += tokens * tokens;
  xy_ += tokens * seconds;
}

double ProbeBudget::LearnedCost() const {
  const double mean_x = x_ / weight_;
  const double mean_y = y_ / weight_;
  const double variance = xx_ / weight_ - mean_x * mean_x;
  const double per_token = mean_y / mean_x;
  if (weight_ < kLeastSteps || variance < kLeastVariance) return per_token;
  const double slope = (xy_ / weight_ - mean_x * mean_y) / variance;
  return std::clamp(slope, kLeastCost * per_token, per_token);
}

BackgroundTokens ProbeBudget::Allowed() const {
  if (cost_ <= 0.0) return {.beside = 0, .alone = 1};
  const double alone = absl::ToDoubleSeconds(kLongestAlone) / cost_;
  return {.beside = static_cast<int32_t>(std::max(0.0, credit_) / cost_),
          .alone = static_cast<int32_t>(std::clamp(alone, 1.0, double{kMostAlone}))};
}

}  // namespace condense
