#include "engine/probe/token_drift.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace condense {
namespace {

// Log-probabilities are floats: what is left of 1 is known no better.
constexpr double kLeastMass = 1e-6;
// A model may forbid a token altogether.
constexpr double kLeastLogProbability = -1000.0;

std::span<const TokenLogprob> Head(const SampleResult& result, int32_t num_top) {
  return {result.top, static_cast<size_t>(num_top)};
}

// The log-probability of `token`, if it is known; else null.
const float* Find(const SampleResult& result, int32_t num_top, TokenId token) {
  if (token == result.token) return &result.logprob;
  for (const TokenLogprob& entry : Head(result, num_top)) {
    if (entry.token == token) return &entry.logprob;
  }
  return nullptr;
}

double Term(double p, double q) {
  return p <= 0.0 ? 0.0 : p * std::log(p / std::max(q, kLeastMass));
}

// Sums over tokens that both heads hold, and those that only one of them does.
struct Split {
  double kl = 0;               // of tokens in both
  double p = 0, q = 0;         // mass of tokens in both
  double p_only = 0;           // mass of tokens that only the reference's head holds
  double q_only = 0;           // and only the live one's
  int32_t only_reference = 0;  // how many
};

void AddBoth(double log_p, double log_q, Split* split) {
  const double p = std::exp(log_p);
  if (p > 0.0) split->kl += p * (log_p - std::max(log_q, kLeastLogProbability));
  split->p += p;
  split->q += std::exp(log_q);
}

Split SplitHeads(const SampleResult& live, const SampleResult& reference, int32_t num_top) {
  Split split;
  AddBoth(reference.logprob, live.logprob, &split);
  for (const TokenLogprob& entry : Head(reference, num_top)) {
    if (entry.token == reference.token) continue;
    if (const float* log_q = Find(live, num_top, entry.token)) {
      AddBoth(entry.logprob, *log_q, &split);
    } else {
      split.p_only += std::exp(double{entry.logprob});
      ++split.only_reference;
    }
  }
  for (const TokenLogprob& entry : Head(live, num_top)) {
    if (Find(reference, num_top, entry.token) == nullptr) {
      split.q_only += std::exp(double{entry.logprob});
    }
  }
  return split;
}

}  // namespace

TokenDrift CompareTokens(const SampleResult& live, const SampleResult& reference, int32_t num_top) {
  const Split split = SplitHeads(live, reference, num_top);
  const double p_rest = std::max(0.0, 1.0 - split.p);
  const double q_rest = std::max(0.0, 1.0 - split.q);
  // What is in the reference's head alone has in the live one at most the smallest probability of
  // its head. Among the masses that this allows, the one with the least divergence is taken.
  const double least_live = std::exp(double{live.top[num_top - 1].logprob});
  const double most =
      std::min(split.only_reference * least_live, std::max(0.0, q_rest - split.q_only));
  const double even = p_rest > 0.0 ? q_rest * std::min(1.0, split.p_only / p_rest) : 0.0;
  const double q_only_reference = std::min(most, even);
  double kl = split.kl;
  if (p_rest > kLeastMass || q_rest > kLeastMass) {
    kl += Term(split.p_only, q_only_reference) +
          Term(std::max(0.0, p_rest - split.p_only), q_rest - q_only_reference);
  }
  return {.kl = std::max(0.0, kl),
          .nll_delta = double{reference.logprob} - double{live.logprob},
          .top1_agrees = live.top[0].token == reference.top[0].token};
}

}  // namespace condense
