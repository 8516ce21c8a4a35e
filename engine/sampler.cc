#include "engine/sampler.h"

#include <algorithm>
#include <limits>

#include "kernels/base/uniform.h"

namespace condense {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();
constexpr float kForbiddingBias = -100.0f;  // what the API promises about -100

}  // namespace

Sampler::Sampler(const Request& request, const std::vector<TokenId>& stop_tokens)
    : sampling_(request.sampling),
      num_top_(std::max(0, request.num_logprobs)),
      min_tokens_(request.stop.min_tokens),
      forced_(request.forced),
      counts_(sampling_.repetition_penalty != 1.0f || sampling_.presence_penalty != 0.0f ||
              sampling_.frequency_penalty != 0.0f) {
  for (const auto& [token, bias] : sampling_.logit_bias) {
    bias_when_free_.push_back({token, bias <= kForbiddingBias ? kForbidden : bias});
  }
  if (min_tokens_ > 0) {
    for (const TokenBias& bias : bias_when_free_) {
      if (std::find(stop_tokens.begin(), stop_tokens.end(), bias.token) == stop_tokens.end())
        bias_.push_back(bias);
    }
    for (const TokenId token : stop_tokens) bias_.push_back({token, kForbidden});
  }
  if (counts_) {
    for (const TokenId token : request.prompt) Count(token, 0);
  }
}

void Sampler::Count(TokenId token, int32_t generated) {
  const auto [it, is_new] = seen_index_.try_emplace(token, seen_.size());
  if (is_new) seen_.push_back({token, 0});
  seen_[it->second].generated += generated;
}

SampleRow Sampler::Row() {
  const std::vector<TokenBias>& bias = generated_ < min_tokens_ ? bias_ : bias_when_free_;
  const auto index = static_cast<size_t>(generated_);
  return {.temperature = sampling_.temperature,
          .top_k = sampling_.top_k,
          .top_p = sampling_.top_p,
          .min_p = sampling_.min_p,
          .repetition_penalty = sampling_.repetition_penalty,
          .presence_penalty = sampling_.presence_penalty,
          .frequency_penalty = sampling_.frequency_penalty,
          .uniform = Uniform(sampling_.seed, static_cast<uint64_t>(generated_)),
          .target = index < forced_.size() ? forced_[index] : -1,
          .num_top = num_top_,
          .seen = seen_.data(),
          .num_seen = static_cast<int32_t>(seen_.size()),
          .bias = bias.data(),
          .num_bias = static_cast<int32_t>(bias.size())};
}

SampleRow Sampler::ScoreRow(TokenId target) const { return {.target = target}; }

void Sampler::Accept(TokenId token) {
  ++generated_;
  if (counts_) Count(token, 1);
}

}  // namespace condense
