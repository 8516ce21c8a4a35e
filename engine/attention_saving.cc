#include "engine/attention_saving.h"

#include <algorithm>

namespace condense {
namespace {

constexpr int64_t kLeastTokens = 1024;   // below, what attention costs is not what its tokens cost
constexpr double kFade = 0.99;           // of the past, with every step
constexpr double kLeastSteps = 8.0;      // and
constexpr double kLeastVariance = 4e-4;  // of the share: before, a line could point anywhere
constexpr double kBelieved = 0.75;

}  // namespace

void AttentionSaving::Observe(absl::Duration time, int64_t tokens, double saved_share) {
  Skip();
  if (tokens < kLeastTokens) return;
  const auto num_tokens = static_cast<double>(tokens);
  const double seconds = absl::ToDoubleSeconds(time);
  const double share = std::clamp(saved_share, 0.0, 0.99);
  Learn(share, seconds / num_tokens);
  // No more than if time were what bytes are.
  const double most = seconds * share / (1.0 - share);
  saved_ = absl::Seconds(kBelieved * std::clamp(slope_ * share * num_tokens, 0.0, most));
}

void AttentionSaving::Learn(double share, double seconds_per_token) {
  for (double* sum : {&weight_, &x_, &y_, &xx_, &xy_}) *sum *= kFade;
  weight_ += 1.0;
  x_ += share;
  y_ += seconds_per_token;
  xx_ += share * share;
  xy_ += share * seconds_per_token;
  const double mean_x = x_ / weight_;
  const double variance = xx_ / weight_ - mean_x * mean_x;
  if (weight_ < kLeastSteps || variance < kLeastVariance) return;
  slope_ = -(xy_ / weight_ - mean_x * y_ / weight_) / variance;
}

}  // namespace condense
