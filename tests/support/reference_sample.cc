#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/base/check.h"
#include "tests/support/reference_backend.h"

namespace condense {
namespace {

// Usable: no NaN, no +infinity, at least one finite logit.
template <typename Float>
bool Usable(const std::vector<Float>& logits) {
  bool any_finite = false;
  for (const Float logit : logits) {
    if (std::isnan(logit) || logit == HUGE_VAL) return false;
    any_finite |= std::isfinite(logit);
  }
  return any_finite;
}

// Token ids, the largest logit first, equal ones by id.
std::vector<TokenId> Rank(const std::vector<float>& logits) {
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
  return ids;
}

double LogTotal(const std::vector<float>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(logit - max);
  return max + std::log(sum);
}

void Modify(const SampleRow& params, std::vector<float>* logits) {
  for (int i = 0; i < params.num_seen; ++i) {
    float& logit = (*logits)[params.seen[i].token];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    if (params.seen[i].generated > 0) {
      logit -= params.presence_penalty +
               params.frequency_penalty * static_cast<float>(params.seen[i].generated);
    }
  }
  for (int i = 0; i < params.num_bias; ++i) (*logits)[params.bias[i].token] += params.bias[i].bias;
}

// How many of the ranked tokens top-k, top-p and min-p leave.
size_t CountKept(const SampleRow& params, const std::vector<double>& ranked_weights) {
  size_t kept = ranked_weights.size();
  if (params.top_k > 0) kept = std::min<size_t>(kept, params.top_k);
  if (params.top_p < 1.0f) {
    const double wanted =
        params.top_p * std::accumulate(ranked_weights.begin(), ranked_weights.begin() + kept, 0.0);
    double sum = 0.0;
    size_t count = 0;
    while (count < kept && (count == 0 || sum < wanted)) sum += ranked_weights[count++];
    kept = count;
  }
  size_t likely = 1;
  while (likely < kept && ranked_weights[likely] >= params.min_p * ranked_weights[0]) ++likely;
  return likely;
}

TokenId Draw(const SampleRow& params, const std::vector<float>& logits) {
  const std::vector<TokenId> ranked = Rank(logits);
  if (params.temperature <= 0.0f) return ranked[0];
  std::vector<double> weights;
  for (const TokenId id : ranked) {
    weights.push_back(std::exp((double{logits[id]} - logits[ranked[0]]) / params.temperature));
  }
  const size_t kept = CountKept(params, weights);
  std::vector<double> weight_of(logits.size(), 0.0);
  double total = 0.0;
  for (size_t i = 0; i < kept; ++i) {
    weight_of[ranked[i]] = weights[i];
    total += weights[i];
  }
  double below = 0.0;
  TokenId token = ranked[0];
  for (size_t id = 0; id < weight_of.size(); ++id) {
    if (weight_of[id] <= 0.0) continue;
    token = static_cast<TokenId>(id);
    below += weight_of[id];
    if (below > params.uniform * total) break;
  }
  return token;
}

}  // namespace

SampleResult ReferenceSample(const float* row, int32_t vocab, const SampleRow& params) {
  const std::vector<float> logits(row, row + vocab);
  SampleResult result;
  result.finite = Usable(logits);
  if (!result.finite) return result;
  const double log_total = LogTotal(logits);
  const std::vector<TokenId> ranked = Rank(logits);
  for (int i = 0; i < std::min(params.num_top, vocab); ++i) {
    result.top[i] = {ranked[i], static_cast<float>(logits[ranked[i]] - log_total)};
  }
  if (params.target >= 0) {
    result.token = params.target;
  } else {
    std::vector<float> modified = logits;
    Modify(params, &modified);
    result.finite = Usable(modified);
    if (!result.finite) return result;
    result.token = Draw(params, modified);
  }
  result.logprob = static_cast<float>(logits[result.token] - log_total);
  return result;
}

}  // namespace condense
