#ifndef CONDENSE_TESTS_TOOLS_EVAL_FAKE_DRIVER_H_
#define CONDENSE_TESTS_TOOLS_EVAL_FAKE_DRIVER_H_

// A driver without a model: each branch expects what followed the last time the same words were
// said, as far as it remembers.

#include <string>
#include <vector>

#include "tools/eval/eval_driver.h"

namespace condense {

// Logits depend on what a branch remembers, and on nothing else. Policy "none" keeps everything and
// blurs the logits a little; every other policy forgets all but the newest 1/ratio of its tokens.
class FakeDriver : public EvalDriver {
 public:
  FakeDriver(int32_t vocab, int64_t max_tokens, int32_t max_branches)
      : vocab_(vocab), max_tokens_(max_tokens), max_branches_(max_branches) {}

  int32_t vocab() const override { return vocab_; }
  int64_t max_tokens() const override { return max_tokens_; }
  int32_t max_branches() const override { return max_branches_; }
  absl::Status Prefill(std::span<const TokenId> context) override;
  absl::Status Fork(std::span<const Compression> branches) override;
  absl::Status Settle() override;
  absl::Status Rewind() override;
  absl::Status Step(std::span<const TokenId> tokens, float* logits) override;
  BranchState State(int32_t branch) const override;

  // Call number `call` of any method that may fail (from 0) fails.
  void FailAt(int64_t call) { fail_at_ = call; }
  // From that step on (from 0), branch `branch` gives NaN.
  void PoisonAt(int64_t step, int32_t branch) {
    poison_at_ = step;
    poison_branch_ = branch;
  }
  int64_t calls() const { return calls_; }
  int64_t steps() const { return steps_; }
  int64_t prefills() const { return prefills_; }

 private:
  struct Branch {
    Compression compression;
    std::vector<TokenId> tokens;  // all
    int64_t forgotten = 0;        // of them, the oldest
  };

  absl::Status Call();
  void Predict(const Branch& branch, float* logits) const;

  const int32_t vocab_;
  const int64_t max_tokens_;
  const int32_t max_branches_;
  std::vector<TokenId> context_;
  std::vector<Branch> branches_, settled_;
  int64_t calls_ = 0, steps_ = 0, prefills_ = 0;
  int64_t fail_at_ = -1, poison_at_ = -1;
  int32_t poison_branch_ = -1;
};

}  // namespace condense

#endif  // CONDENSE_TESTS_TOOLS_EVAL_FAKE_DRIVER_H_
