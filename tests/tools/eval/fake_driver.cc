#include "tests/tools/eval/fake_driver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace condense {
namespace {

constexpr int64_t kLongestMatch = 48;
constexpr int64_t kBytesPerToken = 64;

// In [0, 1), a function of its arguments.
float Noise(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + 0x94d049bb133111ebu;
  x ^= x >> 31;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  return static_cast<float>(x >> 40) / static_cast<float>(1 << 24);
}

}  // namespace

absl::Status FakeDriver::Call() {
  if (calls_++ == fail_at_) return absl::InternalError("the fake failed as asked");
  return absl::OkStatus();
}

absl::Status FakeDriver::Prefill(std::span<const TokenId> context) {
  EXPECT_LE(static_cast<int64_t>(context.size()), max_tokens_);
  ++prefills_;
  branches_.clear();
  context_.assign(context.begin(), context.end());
  return Call();
}

absl::Status FakeDriver::Fork(std::span<const Compression> branches) {
  EXPECT_GE(branches.size(), 1u);
  EXPECT_LE(static_cast<int32_t>(branches.size()), max_branches_);
  branches_.clear();
  for (const Compression& compression : branches) branches_.push_back({compression, context_, 0});
  return Call();
}

absl::Status FakeDriver::Settle() {
  for (Branch& branch : branches_) {
    const auto size = static_cast<int64_t>(branch.tokens.size());
    if (!branch.compression.active() || branch.compression.policy == "none") continue;
    branch.forgotten =
        size - static_cast<int64_t>(static_cast<double>(size) / branch.compression.ratio);
  }
  settled_ = branches_;
  return Call();
}

absl::Status FakeDriver::Rewind() {
  branches_ = settled_;
  return Call();
}

absl::Status FakeDriver::Step(std::span<const TokenId> tokens, float* logits) {
  EXPECT_EQ(tokens.size(), branches_.size());
  for (size_t b = 0; b < branches_.size(); ++b) {
    branches_[b].tokens.push_back(tokens[b]);
    EXPECT_LE(static_cast<int64_t>(branches_[b].tokens.size()), max_tokens_);
    Predict(branches_[b], logits + b * vocab_);
    if (poison_at_ >= 0 && steps_ >= poison_at_ && static_cast<int32_t>(b) == poison_branch_) {
      logits[b * vocab_ + vocab_ / 2] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  ++steps_;
  return Call();
}

void FakeDriver::Predict(const Branch& branch, float* logits) const {
  const auto& tokens = branch.tokens;
  const auto size = static_cast<int64_t>(tokens.size());
  const float blur = branch.compression.active() ? 0.5f : 0.0f;
  for (int32_t v = 0; v < vocab_; ++v) {
    logits[v] = Noise(tokens.back(), v) + blur * Noise(size + 1000, v);
  }
  int64_t best = 0;
  for (int64_t end = branch.forgotten + 1; end < size; ++end) {
    int64_t match = 0;
    while (match < kLongestMatch && end - match > branch.forgotten &&
           tokens[end - 1 - match] == tokens[size - 1 - match]) {
      ++match;
    }
    if (match == 0 || match < best) continue;
    best = match;
    for (int32_t v = 0; v < vocab_; ++v) logits[v] = std::min(logits[v], 1.5f);
    logits[tokens[end]] = 2.0f + 0.5f * static_cast<float>(match);
  }
}

BranchState FakeDriver::State(int32_t branch) const {
  const Branch& b = branches_[branch];
  const auto size = static_cast<int64_t>(b.tokens.size());
  BranchState state{.bytes = size * kBytesPerToken, .bytes_16bit = size * kBytesPerToken};
  if (!b.compression.active()) return state;
  state.bytes = static_cast<int64_t>(static_cast<double>(state.bytes) / b.compression.ratio);
  state.swaps_accepted = 3;
  state.swaps_refused = 1;
  state.hit_ratio = 0.9;
  state.seconds = 0.25;
  return state;
}

}  // namespace condense
