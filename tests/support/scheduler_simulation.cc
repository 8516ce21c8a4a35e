#include "tests/support/scheduler_simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace condense {

Simulation::Simulation(SchedulerOptions options, int64_t arena_tokens)
    : Simulation(options,
                 {.num_layers = 1, .num_kv_heads = 1, .block = {.head_dim = 8, .block_tokens = 32}},
                 arena_tokens * 32) {}

Simulation::Simulation(SchedulerOptions options, const KvLayout& layout, int64_t arena_bytes)
    : options_(options) {
  backend_ = MakeBackend({.kind = "cpu", .num_threads = 1}).value();
  cache_ = KvCache::Make(backend_.get(), layout,
                         {.arena_bytes = arena_bytes, .step_tokens = options.step_tokens})
               .value();
  scheduler_ =
      std::make_unique<Scheduler>(options, cache_.get(), [this] { return relief_coming_; });
}

void Simulation::Submit(const std::string& id, int prompt, int output, int priority,
                        const std::string& tenant) {
  Request request{
      .id = id, .prompt = std::vector<TokenId>(prompt, 1), .priority = priority, .tenant = tenant};
  auto stream = std::make_shared<TokenStream>(id, 1 << 20);
  submitted_at_[id] = now_;
  scheduler_->Add(std::make_unique<Sequence>(Submission{request, stream, now_}, output,
                                             std::vector<TokenId>{}));
}

void Simulation::SetBackground(int prompt, int forced) {
  Request request{.id = "background", .prompt = std::vector<TokenId>(prompt, 1)};
  request.forced = std::vector<TokenId>(forced, 2);
  auto stream = std::make_shared<TokenStream>(request.id, 1 << 20);
  scheduler_->SetBackground(std::make_unique<Sequence>(Submission{request, stream, now_}, forced,
                                                       std::vector<TokenId>{}));
}

StepPlan Simulation::Step() {
  now_ += absl::Milliseconds(10);
  StepPlan plan = scheduler_->Schedule(now_, allowed_);
  preemptions_ += plan.preempted;
  preemptions_avoided_ += plan.preemptions_avoided;
  for (const Sequence* sequence : plan.started) started_at_[sequence->request().id] = now_;
  CheckPlan(plan);
  CheckBackground(plan);
  ran_.clear();
  for (const StepPlan::Item& item : plan.items) Compute(item);
  for (const StepPlan::Item& item : plan.items) {
    if (item.sequence->ended()) End(item.sequence);
  }
  return plan;
}

void Simulation::Compute(const StepPlan::Item& item) {
  Sequence* sequence = item.sequence;
  cache_->Commit(sequence->kv(), item.num_tokens);
  sequence->Computed(item.num_tokens);
  if (item.background) {
    background_tokens_ += item.num_tokens;
  } else {
    tokens_[sequence->request().tenant] += item.num_tokens;
    ran_.emplace_back(sequence->request().id, item.num_tokens);
  }
  if (sequence->computed() != sequence->known()) return;
  const TokenId target = sequence->RowFor(sequence->computed() - 1).target;
  EXPECT_EQ(target >= 0, item.background);
  SampleResult result;
  result.token = std::max(0, target);
  sequence->Take(sequence->computed() - 1, result, tokenizer_, now_);
}

void Simulation::End(Sequence* sequence) {
  const bool background = sequence == scheduler_->background();
  const std::unique_ptr<Sequence> removed = scheduler_->Remove(sequence);
  if (background) {
    ++background_ended_;
    return;
  }
  EXPECT_TRUE(ended_.insert(removed->request().id).second)
      << removed->request().id << " ended twice";
  ended_at_[removed->request().id] = now_;
}

void Simulation::CheckPlan(const StepPlan& plan) {
  int32_t sum = 0;
  std::set<const Sequence*> seen;
  for (const StepPlan::Item& item : plan.items) {
    EXPECT_TRUE(seen.insert(item.sequence).second);
    EXPECT_GT(item.num_tokens, 0);
    EXPECT_LE(item.sequence->computed() + item.num_tokens, item.sequence->known());
    EXPECT_EQ(item.background, item.sequence == scheduler_->background());
    EXPECT_TRUE(!item.background || item.sequence == plan.items.back().sequence);
    sum += item.num_tokens;
  }
  EXPECT_EQ(sum, plan.num_tokens);
  EXPECT_LE(sum, options_.step_tokens);
  EXPECT_LE(scheduler_->running(), options_.max_sequences);
}

void Simulation::CheckBackground(const StepPlan& plan) {
  const int32_t tokens = plan.background_tokens();
  EXPECT_EQ(plan.HasBackground(), tokens > 0);
  EXPECT_EQ(plan.HasRequests(), plan.num_tokens > tokens);
  if (tokens == 0) return;
  EXPECT_EQ(scheduler_->waiting(), 0);
  EXPECT_EQ(plan.deferred + plan.preempted, 0);
  if (scheduler_->running() == 0) {
    EXPECT_LE(tokens, allowed_.alone);
  } else {
    EXPECT_LE(tokens, allowed_.beside);
    EXPECT_LE(tokens, std::max(1, (plan.num_tokens - tokens) / 8));
  }
}

Sequence* Simulation::Find(const std::string& id) {
  for (Sequence* sequence : scheduler_->All()) {
    if (sequence->request().id == id) return sequence;
  }
  return nullptr;
}

}  // namespace condense
