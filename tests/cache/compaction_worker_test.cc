#include "cache/compaction_worker.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cache/policies/registry.h"
#include "tests/support/compaction_unit.h"
#include "tests/support/fault_backend.h"

namespace condense {
namespace {

constexpr absl::Duration kLong = absl::Seconds(240);

std::unique_ptr<Backend> MakeCpu() {
  BackendOptions options;
  options.kind = "cpu";
  options.num_threads = 1;
  return *MakeBackend(options);
}

// Jobs of one unit, each with destinations of its own: ranges, policies and formats at random.
class RandomJobs {
 public:
  explicit RandomJobs(CompactionUnit* unit) : unit_(unit) {
    for (const PolicyInfo& info : RegisteredPolicies()) policies_.push_back(info.make());
  }
  CompactionJob Next() {
    constexpr KvFormat kFormats[] = {KvFormat::kK16V16, KvFormat::kK8V8, KvFormat::kK6V4,
                                     KvFormat::kK4V4, KvFormat::kK4V3};
    const KvFormat format = kFormats[random_() % 5];
    const KvBlockFlags centred =
        KvKeysRotated(format) && random_() % 2 == 0 ? kKvCentred : KvBlockFlags{0};
    const Policy* policy = policies_[random_() % policies_.size()].get();
    CompactionJob job = unit_->Job(policy, format, kMergedFlags | centred, 2.0 + random_() % 6);
    job.ticket = next_++;
    job.first_block = static_cast<int32_t>(random_() % job.front.size());
    job.num_blocks = static_cast<int32_t>(random_() % (job.front.size() - job.first_block + 1));
    job.params.min_tokens = 0;
    job.protection.window_tokens = static_cast<int32_t>(random_() % 100);
    job.evidence = unit_->Evidence(static_cast<int32_t>(random_() % 8), random_());
    job.held_out = unit_->HeldOut(static_cast<int32_t>(random_() % 5), random_());
    if (random_() % 3 == 0) job.limits = {0.1, 0.05};
    return job;
  }

 private:
  CompactionUnit* const unit_;
  std::vector<std::unique_ptr<const Policy>> policies_;
  std::mt19937 random_{7};
  KvTicket next_ = 0;
};

void ExpectSame(const CompactionResult& actual, const CompactionResult& expected) {
  EXPECT_EQ(actual.outcome, expected.outcome) << actual.status;
  EXPECT_EQ(actual.entries_before, expected.entries_before);
  EXPECT_EQ(actual.entries_after, expected.entries_after);
  EXPECT_EQ(actual.blocks.size(), expected.blocks.size());
  EXPECT_EQ(actual.marked, expected.marked);
  EXPECT_EQ(actual.quality.output_error, expected.quality.output_error);
  EXPECT_EQ(actual.quality.hit_ratio, expected.quality.hit_ratio);
}

TEST(CompactionWorkerTest, ManyJobsUnderAThreadEndAsTheyDoWithoutOne) {
  constexpr int kJobs = 120;
  const std::unique_ptr<Backend> backend = MakeCpu();
  CompactionUnit unit(backend.get(), {.num_entries = 300, .room = kJobs});
  RandomJobs random(&unit);
  std::vector<CompactionJob> jobs;
  std::vector<CompactionResult> expected;
  CompactionRunner runner(backend.get(), unit.model());
  std::map<SwapOutcome, int> outcomes;
  for (int i = 0; i < kJobs; ++i) {
    jobs.push_back(random.Next());
    expected.push_back(runner.Run(jobs.back()));
    ++outcomes[expected.back().outcome];
  }
  EXPECT_GT(outcomes[SwapOutcome::kAccepted], 20);
  EXPECT_GT(outcomes[SwapOutcome::kRefused], 10);
  EXPECT_GT(outcomes[SwapOutcome::kUseless], 3);
  EXPECT_EQ(outcomes[SwapOutcome::kFailed], 0);
  const std::vector<std::byte> image = unit.Image();

  CompactionMailbox mailbox(4);
  CompactionWorker worker(backend.get(), unit.model(), &mailbox, nullptr);
  int posted = 0, collected = 0;
  while (collected < kJobs) {
    while (posted < kJobs && mailbox.TryPost(CompactionJob(jobs[posted]))) ++posted;
    ASSERT_TRUE(mailbox.WaitForResult(kLong));
    // One worker: results come in the order of the jobs.
    while (const std::optional<CompactionResult> result = mailbox.TryCollect()) {
      SCOPED_TRACE(collected);
      EXPECT_EQ(result->ticket, collected);
      ExpectSame(*result, expected[collected++]);
    }
  }
  EXPECT_EQ(mailbox.jobs_out(), 0);
  EXPECT_TRUE(unit.Image() == image);
}

TEST(CompactionWorkerTest, FailuresDoNotEndTheThread) {
  FaultBackend backend(MakeCpu());
  CompactionUnit unit(&backend, {.num_entries = 200, .room = 8});
  const auto policy = *MakePolicy("none");
  CompactionMailbox mailbox(1);
  CompactionWorker worker(&backend, unit.model(), &mailbox, nullptr);
  for (int call = 0; call < 5; ++call) {
    backend.FailWorkerOp(call < 4 ? backend.num_worker_ops() + call : -1);
    ASSERT_TRUE(mailbox.TryPost(unit.Job(policy.get(), KvFormat::kK8V8, kKvRun, 0)));
    ASSERT_TRUE(mailbox.WaitForResult(kLong));
    EXPECT_EQ(mailbox.TryCollect()->outcome,
              call < 4 ? SwapOutcome::kFailed : SwapOutcome::kAccepted);
  }
}

TEST(CompactionWorkerTest, EndsInTheMiddleOfItsWorkAndLosesNoJob) {
  const std::unique_ptr<Backend> backend = MakeCpu();
  for (int round = 0; round < 5; ++round) {
    CompactionUnit unit(backend.get(), {.num_entries = 100, .room = 40});
    RandomJobs random(&unit);
    CompactionMailbox mailbox(30);
    {
      CompactionWorker worker(backend.get(), unit.model(), &mailbox, nullptr);
      for (int i = 0; i < 30; ++i) ASSERT_TRUE(mailbox.TryPost(random.Next()));
      ASSERT_TRUE(round == 0 || mailbox.WaitForResult(kLong));
    }
    std::vector<int> seen(30, 0);
    while (const std::optional<CompactionResult> result = mailbox.TryCollect()) {
      ++seen[result->ticket];
      EXPECT_EQ(result->status.ok(), result->outcome != SwapOutcome::kFailed);
    }
    EXPECT_EQ(seen, std::vector<int>(30, 1));
    EXPECT_EQ(mailbox.jobs_out(), 0);
  }
}

TEST(CompactionWorkerTest, KeepsToItsPaceAndEndsWithJobsLeft) {
  const std::unique_ptr<Backend> backend = MakeCpu();
  CompactionUnit unit(backend.get(), {.num_entries = 64});
  const auto policy = *MakePolicy("none");
  CompactionPace pace({.per_step = std::chrono::nanoseconds(1), .share = 0.0});
  CompactionMailbox mailbox(8);
  std::optional<CompactionWorker> worker;
  worker.emplace(backend.get(), unit.model(), &mailbox, &pace);
  const auto post = [&] {
    ASSERT_TRUE(mailbox.TryPost(unit.Job(policy.get(), KvFormat::kK8V8, kKvRun, 0)));
  };
  post();
  ASSERT_TRUE(mailbox.WaitForResult(kLong));
  EXPECT_EQ(mailbox.TryCollect()->outcome, SwapOutcome::kAccepted);
  // One step allows one piece, and a job has several.
  pace.BeginStep(std::chrono::nanoseconds(0));
  post();
  EXPECT_FALSE(mailbox.WaitForResult(absl::Milliseconds(30)));
  pace.Lift();
  ASSERT_TRUE(mailbox.WaitForResult(kLong));
  EXPECT_EQ(mailbox.TryCollect()->outcome, SwapOutcome::kAccepted);
  pace.BeginStep(std::chrono::nanoseconds(0));
  for (int i = 0; i < 3; ++i) post();
  worker.reset();
  int results = 0;
  while (mailbox.TryCollect().has_value()) ++results;
  EXPECT_EQ(results, 3);
}

}  // namespace
}  // namespace condense
