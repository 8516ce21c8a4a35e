#include "engine/scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr int32_t kMaxReserveGrowth = 16;
constexpr int32_t kBackgroundPart = 8;  // one token of the background beside so many others

auto FindIn(std::vector<std::unique_ptr<Sequence>>& list, const Sequence* sequence) {
  return std::find_if(list.begin(), list.end(),
                      [&](const auto& entry) { return entry.get() == sequence; });
}

}  // namespace

Scheduler::Scheduler(SchedulerOptions options, KvCache* cache, std::function<bool()> relief_coming)
    : options_(options),
      cache_(cache),
      relief_coming_(std::move(relief_coming)),
      decode_reserve_(options.decode_reserve_tokens) {}

void Scheduler::Add(std::unique_ptr<Sequence> sequence) {
  const std::string& tenant = sequence->request().tenant;
  if (!served_tokens_.contains(tenant)) {
    // A newcomer starts level with the least served tenant: absence earns no credit.
    int64_t least = 0;
    bool first = true;
    for (const auto& [name, served] : served_tokens_) {
      least = first ? served : std::min(least, served);
      first = false;
    }
    served_tokens_[tenant] = least;
  }
  waiting_.push_back(std::move(sequence));
}

void Scheduler::SetBackground(std::unique_ptr<Sequence> sequence) {
  CHECK(background_ == nullptr);
  background_ = std::move(sequence);
}

std::unique_ptr<Sequence> Scheduler::Remove(Sequence* sequence) {
  if (sequence == background_.get()) {
    if (std::unique_ptr<KvSequence> kv = background_->Finish()) cache_->Release(kv.get());
    return std::move(background_);
  }
  Sequences& list = sequence->state() == Sequence::State::kRunning ? running_ : waiting_;
  const auto it = FindIn(list, sequence);
  CHECK(it != list.end());
  std::unique_ptr<Sequence> removed = std::move(*it);
  list.erase(it);
  if (alone_ == sequence) alone_ = nullptr;
  deferred_.erase(sequence);
  if (std::unique_ptr<KvSequence> kv = removed->Finish()) cache_->Release(kv.get());

  const std::string& tenant = removed->request().tenant;
  const auto same_tenant = [&](const auto& other) { return other->request().tenant == tenant; };
  if (std::none_of(running_.begin(), running_.end(), same_tenant) &&
      std::none_of(waiting_.begin(), waiting_.end(), same_tenant)) {
    served_tokens_.erase(tenant);
  }
  return removed;
}

std::vector<Sequence*> Scheduler::All() const {
  std::vector<Sequence*> all;
  all.reserve(running_.size() + waiting_.size());
  for (const auto& sequence : running_) all.push_back(sequence.get());
  for (const auto& sequence : waiting_) all.push_back(sequence.get());
  return all;
}

StepPlan Scheduler::Schedule(absl::Time now, const BackgroundTokens& background) {
  StepPlan plan;
  patient_ = now - idle_since_ < options_.longest_idle;
  PlanDecodes(&plan);
  if (plan.preempted == 0 && plan.deferred == 0) Admit(now, &plan);
  const int32_t background_tokens = BackgroundTokensOf(plan, background);
  PlanPrompts(options_.step_tokens - background_tokens, &plan);
  if (background_tokens > 0) PlanBackground(background_tokens, now, &plan);
  if (!plan.items.empty() || plan.deferred == 0) {
    idle_since_ = absl::InfiniteFuture();
  } else {
    idle_since_ = std::min(idle_since_, now);
  }
  if (plan.preempted > 0) {
    const int32_t least =
        std::max(options_.decode_reserve_tokens, cache_->layout().block.block_tokens);
    decode_reserve_ = std::min(std::max(decode_reserve_, least / 2) * 2, least * kMaxReserveGrowth);
  } else if (decode_reserve_ > options_.decode_reserve_tokens) {
    --decode_reserve_;
  }
  return plan;
}

void Scheduler::PlanDecodes(StepPlan* plan) {
  // A copy: making room for one may move another to the waiting ones.
  std::vector<Sequence*> decodes;
  for (const auto& sequence : running_) {
    if (sequence->known() - sequence->computed() == 1) decodes.push_back(sequence.get());
  }
  for (Sequence* sequence : decodes) {
    if (plan->num_tokens == options_.step_tokens) return;
    if (sequence->state() != Sequence::State::kRunning) continue;
    if (Reserve(sequence, 1, plan)) Plan(sequence, 1, plan);
  }
}

void Scheduler::PlanPrompts(int32_t step_tokens, StepPlan* plan) {
  std::vector<Sequence*> prompts;
  for (const auto& sequence : running_) {
    if (sequence->known() - sequence->computed() > 1) prompts.push_back(sequence.get());
  }
  if (prompts.empty()) return;
  const int32_t budget = std::max(0, step_tokens - plan->num_tokens);
  const auto left = [](const Sequence* sequence) {
    return sequence->known() - sequence->computed();
  };
  const auto take = [&](const Sequence* sequence, int64_t limit) {
    return static_cast<int32_t>(std::min<int64_t>(left(sequence), limit));
  };

  Sequence* const oldest = prompts.front();
  std::stable_sort(prompts.begin(), prompts.end(),
                   [&](const Sequence* a, const Sequence* b) { return left(a) < left(b); });
  int32_t others_budget = budget - take(oldest, (budget + 1) / 2);
  std::vector<std::pair<Sequence*, int32_t>> chunks;
  for (Sequence* sequence : prompts) {
    if (sequence == oldest || others_budget == 0) continue;
    const int32_t tokens = take(sequence, others_budget);
    chunks.emplace_back(sequence, tokens);
    others_budget -= tokens;
  }
  chunks.emplace_back(oldest, take(oldest, (budget + 1) / 2 + others_budget));

  for (const auto& [sequence, tokens] : chunks) {
    // A reservation for another prompt may have preempted this one.
    if (tokens == 0 || sequence->state() != Sequence::State::kRunning) continue;
    if (Reserve(sequence, tokens, plan)) Plan(sequence, tokens, plan);
  }
}

void Scheduler::Plan(Sequence* sequence, int32_t tokens, StepPlan* plan) {
  plan->items.push_back({sequence, tokens});
  plan->num_tokens += tokens;
  served_tokens_[sequence->request().tenant] += tokens;
}

bool Scheduler::Reserve(Sequence* sequence, int32_t tokens, StepPlan* plan) {
  while (!cache_->TryReserve(sequence->kv(), tokens)) {
    if (TakeBackgroundsRoom()) continue;
    if (patient_ && relief_coming_ && relief_coming_()) {
      deferred_.insert(sequence);
      ++plan->deferred;
      return false;
    }
    Sequence* victim = Victim();
    if (running_.size() == 1) {
      // Blocks of windowed layers may lie scattered over more slabs than they fill. Computed again,
      // they are packed; if that does not help, nothing does.
      if (alone_ == sequence && alone_known_ == sequence->known()) {
        plan->unfit = sequence;
        return false;
      }
      alone_ = sequence;
      alone_known_ = sequence->known();
    }
    Preempt(victim, plan);
    if (victim == sequence) return false;
  }
  plan->preemptions_avoided += static_cast<int32_t>(deferred_.erase(sequence));
  return true;
}

Sequence* Scheduler::Victim() const {
  Sequence* victim = nullptr;
  for (const auto& sequence : running_) {
    if (victim == nullptr || sequence->request().priority <= victim->request().priority)
      victim = sequence.get();
  }
  return victim;
}

void Scheduler::Preempt(Sequence* victim, StepPlan* plan) {
  const auto planned =
      std::find_if(plan->items.begin(), plan->items.end(),
                   [&](const StepPlan::Item& item) { return item.sequence == victim; });
  if (planned != plan->items.end()) {
    plan->num_tokens -= planned->num_tokens;
    plan->items.erase(planned);
  }
  ++plan->preempted;
  // What the others get now is the victim's: nobody's preemption was avoided.
  deferred_.clear();
  SetBack(victim);
}

void Scheduler::SetBack(Sequence* sequence) {
  const std::unique_ptr<KvSequence> kv = sequence->Preempt();
  cache_->Release(kv.get());
  const auto it = FindIn(running_, sequence);
  waiting_.insert(waiting_.begin(), std::move(*it));
  running_.erase(it);
}

bool Scheduler::Rebuild(Sequence* sequence) {
  CHECK(sequence->state() == Sequence::State::kRunning);
  while (!cache_->Fits(sequence->known(), PromisedTokens())) {
    if (!TakeBackgroundsRoom()) return false;
  }
  deferred_.erase(sequence);
  SetBack(sequence);
  return true;
}

int32_t Scheduler::BackgroundTokensOf(const StepPlan& plan, const BackgroundTokens& allowed) const {
  if (background_ == nullptr || !waiting_.empty()) return 0;
  if (plan.deferred > 0 || plan.preempted > 0) return 0;
  int64_t others = plan.num_tokens;
  for (const auto& sequence : running_) {
    const int64_t left = sequence->known() - sequence->computed();
    if (left > 1) others += left;
  }
  const int64_t room = options_.step_tokens - plan.num_tokens;
  // Of a full step they give up what the background gets.
  const int64_t part =
      std::min<int64_t>(others / kBackgroundPart, options_.step_tokens / (kBackgroundPart + 1));
  const int64_t limit = running_.empty()
                            ? allowed.alone
                            : std::min<int64_t>(allowed.beside, std::max<int64_t>(1, part));
  const int64_t left = background_->known() - background_->computed();
  return static_cast<int32_t>(std::max<int64_t>(0, std::min({left, limit, room})));
}

void Scheduler::PlanBackground(int32_t tokens, absl::Time now, StepPlan* plan) {
  if (plan->deferred > 0 || plan->preempted > 0 || plan->unfit != nullptr) return;
  Sequence* const sequence = background_.get();
  if (sequence->state() == Sequence::State::kWaiting) {
    const auto all =
        static_cast<int64_t>(sequence->request().prompt.size() + sequence->request().forced.size());
    const bool crowds =
        options_.background_starts_below < 1.0 && ArenaFill(all) > options_.background_starts_below;
    if (crowds || !cache_->Fits(all, PromisedTokens())) return;
    sequence->Start(now, cache_->Open());
  }
  if (ArenaFill(0) > options_.background_leaves_above ||
      !cache_->TryReserve(sequence->kv(), tokens)) {
    TakeBackgroundsRoom();
    return;
  }
  plan->items.push_back({sequence, tokens, /*background=*/true});
  plan->num_tokens += tokens;
}

double Scheduler::ArenaFill(int64_t more_tokens) const {
  const KvCacheStats stats = cache_->Stats();
  const int64_t more = more_tokens * cache_->layout().bytes_per_token_16bit();
  return static_cast<double>(stats.slab_bytes + more) / static_cast<double>(stats.arena_bytes);
}

bool Scheduler::TakeBackgroundsRoom() {
  if (background_ == nullptr || background_->state() != Sequence::State::kRunning) return false;
  const std::unique_ptr<KvSequence> kv = background_->Preempt();
  cache_->Release(kv.get());
  return true;
}

double Scheduler::EffectivePriority(const Sequence& sequence, absl::Time now) const {
  return sequence.request().priority +
         absl::FDivDuration(now - sequence.submitted(), options_.aging);
}

bool Scheduler::TenantMayRun(const std::string& tenant) const {
  if (options_.max_running_per_tenant == 0) return true;
  const auto same_tenant = [&](const auto& other) { return other->request().tenant == tenant; };
  return std::count_if(running_.begin(), running_.end(), same_tenant) <
         options_.max_running_per_tenant;
}

Sequence* Scheduler::NextWaiting(absl::Time now) const {
  Sequence* best = nullptr;
  double best_priority = 0;
  int64_t best_served = 0;
  for (const auto& sequence : waiting_) {
    const std::string& tenant = sequence->request().tenant;
    if (!TenantMayRun(tenant)) continue;
    // Whole levels only: inside a level the tenant's share decides.
    const double priority = std::floor(EffectivePriority(*sequence, now));
    const int64_t served = served_tokens_.at(tenant);
    if (best != nullptr &&
        (priority < best_priority || (priority == best_priority && served >= best_served)))
      continue;
    best = sequence.get();
    best_priority = priority;
    best_served = served;
  }
  return best;
}

int64_t Scheduler::PromisedTokens() const {
  int64_t promised = 0;
  for (const auto& sequence : running_) {
    // A last block may be partly used, so that each sequence rounds up by its own.
    promised += sequence->known() - sequence->computed() + decode_reserve_ +
                cache_->layout().block.block_tokens;
  }
  return promised;
}

void Scheduler::Admit(absl::Time now, StepPlan* plan) {
  while (running() < options_.max_sequences) {
    Sequence* sequence = NextWaiting(now);
    if (sequence == nullptr) return;
    if (!cache_->Fits(sequence->known(), PromisedTokens())) {
      if (!TakeBackgroundsRoom()) return;
      continue;
    }
    const auto it = FindIn(waiting_, sequence);
    if (!sequence->ever_started()) plan->started.push_back(sequence);
    sequence->Start(now, cache_->Open());
    running_.push_back(std::move(*it));
    waiting_.erase(it);
  }
}

}  // namespace condense
