#include "cache/compaction_mailbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <thread>
#include <vector>

namespace condense {
namespace {

constexpr absl::Duration kLong = absl::Seconds(120);

CompactionJob Job(KvTicket ticket) {
  CompactionJob job;
  job.ticket = ticket;
  job.evidence.visible = {1, 2};
  return job;
}
CompactionResult Accepted(const CompactionJob& job) {
  CompactionResult result;
  result.ticket = job.ticket;
  result.outcome = SwapOutcome::kAccepted;
  return result;
}

TEST(CompactionMailboxTest, AJobGoesInAndItsResultComesOut) {
  CompactionMailbox mailbox(2);
  EXPECT_EQ(mailbox.free_places(), 2);
  EXPECT_FALSE(mailbox.TryCollect().has_value());
  ASSERT_TRUE(mailbox.TryPost(Job(7)));
  EXPECT_EQ(mailbox.jobs_out(), 1);
  const std::optional<CompactionJob> job = mailbox.Take();
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->ticket, 7);
  EXPECT_EQ(job->evidence.size(), 2);
  EXPECT_FALSE(mailbox.TryCollect().has_value());
  mailbox.Return(Accepted(*job));
  EXPECT_EQ(mailbox.free_places(), 1) << "a job is out until it is collected";
  const std::optional<CompactionResult> result = mailbox.TryCollect();
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->ticket, 7);
  EXPECT_EQ(result->outcome, SwapOutcome::kAccepted);
  EXPECT_EQ(mailbox.jobs_out(), 0);
}

TEST(CompactionMailboxTest, RefusesMoreThanItsCapacityAndLeavesTheJobAlone) {
  CompactionMailbox mailbox(1);
  ASSERT_TRUE(mailbox.TryPost(Job(1)));
  CompactionJob second = Job(2);
  EXPECT_FALSE(mailbox.TryPost(std::move(second)));
  EXPECT_EQ(second.ticket, 2);
  EXPECT_EQ(second.evidence.size(), 2);
  mailbox.Return(Accepted(*mailbox.Take()));
  EXPECT_FALSE(mailbox.TryPost(std::move(second)));
  EXPECT_TRUE(mailbox.TryCollect().has_value());
  EXPECT_TRUE(mailbox.TryPost(std::move(second)));
}

TEST(CompactionMailboxTest, CloseAnswersJobsThatNobodyTook) {
  CompactionMailbox mailbox(3);
  for (const KvTicket ticket : {1, 2, 3}) ASSERT_TRUE(mailbox.TryPost(Job(ticket)));
  const std::optional<CompactionJob> taken = mailbox.Take();
  mailbox.Close();
  EXPECT_EQ(mailbox.free_places(), 0);
  EXPECT_FALSE(mailbox.TryPost(Job(4)));
  EXPECT_FALSE(mailbox.Take().has_value());
  mailbox.Close();
  mailbox.Return(Accepted(*taken));
  for (const KvTicket ticket : {2, 3}) {
    const std::optional<CompactionResult> result = mailbox.TryCollect();
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(result->ticket, ticket);
    EXPECT_EQ(result->outcome, SwapOutcome::kFailed);
    EXPECT_EQ(result->status.code(), absl::StatusCode::kCancelled);
  }
  EXPECT_EQ(mailbox.TryCollect()->ticket, 1);
  EXPECT_EQ(mailbox.jobs_out(), 0);
  EXPECT_FALSE(mailbox.TryPost(Job(5)));
}

TEST(CompactionMailboxTest, WaitEndsWithoutAResultWhereNoneCanCome) {
  CompactionMailbox mailbox(1);
  EXPECT_FALSE(mailbox.WaitForResult(absl::InfiniteDuration()));
  ASSERT_TRUE(mailbox.TryPost(Job(1)));
  EXPECT_FALSE(mailbox.WaitForResult(absl::Milliseconds(1)));
  EXPECT_FALSE(mailbox.WaitForResult(absl::ZeroDuration()));
  EXPECT_FALSE(mailbox.WaitForResult(-absl::InfiniteDuration()));
  mailbox.Close();
  EXPECT_TRUE(mailbox.WaitForResult(absl::InfiniteDuration()));
}

TEST(CompactionMailboxTest, CloseWakesAWaitingWorker) {
  CompactionMailbox mailbox(1);
  std::thread worker([&] { EXPECT_FALSE(mailbox.Take().has_value()); });
  mailbox.Close();
  worker.join();
}

TEST(CompactionMailboxTest, EveryJobYieldsOneResultAcrossThreads) {
  constexpr int kJobs = 2000;
  CompactionMailbox mailbox(5);
  std::thread worker([&] {
    while (const std::optional<CompactionJob> job = mailbox.Take()) mailbox.Return(Accepted(*job));
  });
  std::vector<int> seen(kJobs, 0);
  int next = 0, done = 0;
  while (done < kJobs) {
    while (next < kJobs && mailbox.TryPost(Job(next))) ++next;
    ASSERT_TRUE(mailbox.WaitForResult(kLong));
    while (const std::optional<CompactionResult> result = mailbox.TryCollect()) {
      ++seen[result->ticket];
      ++done;
    }
  }
  mailbox.Close();
  worker.join();
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  EXPECT_EQ(mailbox.jobs_out(), 0);
}

TEST(CompactionMailboxTest, CloseInTheMiddleLosesNoJob) {
  for (int round = 0; round < 50; ++round) {
    CompactionMailbox mailbox(64);
    std::thread worker([&] {
      while (const std::optional<CompactionJob> job = mailbox.Take()) {
        mailbox.Return(Accepted(*job));
      }
    });
    std::thread closer([&] { mailbox.Close(); });
    int posted = 0;
    while (posted < 64 && mailbox.TryPost(Job(posted))) ++posted;
    closer.join();
    worker.join();
    std::vector<KvTicket> collected;
    while (const std::optional<CompactionResult> result = mailbox.TryCollect()) {
      collected.push_back(result->ticket);
    }
    ASSERT_EQ(static_cast<int>(collected.size()), posted);
    std::sort(collected.begin(), collected.end());
    for (int i = 0; i < posted; ++i) ASSERT_EQ(collected[i], i);
    ASSERT_EQ(mailbox.jobs_out(), 0);
  }
}

// The same rules, written naively.
struct Model {
  size_t capacity;
  std::deque<KvTicket> posted, taken, returned;
  bool closed = false;

  size_t out() const { return posted.size() + taken.size() + returned.size(); }
  void Close() {
    closed = true;
    returned.insert(returned.end(), posted.begin(), posted.end());
    posted.clear();
  }
};

class RandomWalk {
 public:
  explicit RandomWalk(uint32_t seed) : random_(seed), mailbox_(1 + seed % 7) {
    model_.capacity = 1 + seed % 7;
  }
  void Step() {
    switch (random_() % 40 == 0 ? 3 : random_() % 3) {
      case 0:
        return Post();
      case 1:
        return Work();
      case 2:
        return Collect();
      default:
        if (random_() % 5 != 0) return;
        mailbox_.Close();
        model_.Close();
    }
  }
  void Compare() {
    ASSERT_EQ(mailbox_.jobs_out(), static_cast<int32_t>(model_.out()));
    ASSERT_EQ(mailbox_.free_places(),
              model_.closed ? 0 : static_cast<int32_t>(model_.capacity - model_.out()));
    ASSERT_EQ(mailbox_.WaitForResult(absl::ZeroDuration()), !model_.returned.empty());
  }

 private:
  void Post() {
    const bool fits = !model_.closed && model_.out() < model_.capacity;
    ASSERT_EQ(mailbox_.TryPost(Job(next_)), fits);
    if (fits) model_.posted.push_back(next_++);
  }
  // Takes a job, or gives one back: any of those taken.
  void Work() {
    if (!model_.posted.empty() && random_() % 2 == 0) {
      jobs_.push_back(*mailbox_.Take());
      ASSERT_EQ(jobs_.back().ticket, model_.posted.front());
      model_.taken.push_back(model_.posted.front());
      model_.posted.pop_front();
    } else if (!jobs_.empty()) {
      const size_t i = random_() % jobs_.size();
      mailbox_.Return(Accepted(jobs_[i]));
      model_.returned.push_back(model_.taken[i]);
      model_.taken.erase(model_.taken.begin() + static_cast<int64_t>(i));
      jobs_.erase(jobs_.begin() + static_cast<int64_t>(i));
    } else if (model_.closed) {
      ASSERT_FALSE(mailbox_.Take().has_value());
    }
  }
  void Collect() {
    const std::optional<CompactionResult> result = mailbox_.TryCollect();
    ASSERT_EQ(result.has_value(), !model_.returned.empty());
    if (!result.has_value()) return;
    ASSERT_EQ(result->ticket, model_.returned.front());
    model_.returned.pop_front();
  }

  std::mt19937 random_;
  CompactionMailbox mailbox_;
  Model model_;
  std::vector<CompactionJob> jobs_;
  KvTicket next_ = 0;
};

TEST(CompactionMailboxTest, RandomOperationsMatchTheModel) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    RandomWalk walk(seed);
    for (int step = 0; step < 300 && !testing::Test::HasFatalFailure(); ++step) {
      walk.Step();
      walk.Compare();
    }
    ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed;
  }
}

TEST(CompactionMailboxTest, AJobThatNobodyTookCanBeRecalled) {
  CompactionMailbox mailbox(2);
  ASSERT_TRUE(mailbox.TryPost({.ticket = 1}));
  ASSERT_TRUE(mailbox.TryPost({.ticket = 2}));
  EXPECT_EQ(mailbox.Take()->ticket, 1);
  EXPECT_FALSE(mailbox.TryRecall(1));
  EXPECT_TRUE(mailbox.TryRecall(2));
  EXPECT_FALSE(mailbox.TryRecall(2));
  EXPECT_EQ(mailbox.jobs_out(), 1);
  EXPECT_EQ(mailbox.free_places(), 1);
  mailbox.Return({.ticket = 1});
  EXPECT_EQ(mailbox.TryCollect()->ticket, 1);
  EXPECT_EQ(mailbox.jobs_out(), 0);
}

}  // namespace
}  // namespace condense
