// Requests that end, and backends that fail, while compaction jobs are out.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "tests/support/engine_harness.h"
#include "tests/support/fault_backend.h"
#include "tests/support/watched_engine.h"

namespace condense {
namespace {

constexpr int kPromptTokens = 544;  // enough to merge
constexpr int kManyTokens = 2500;

// An engine over a backend that fails and waits on command. Every step is a turn, so that the first
// turn of a request posts all of its units.
class CompactionFaultTest : public ::testing::Test {
 protected:
  CompactionFaultTest() {
    auto backend =
        std::make_unique<FaultBackend>(MakeBackend({.kind = "cpu", .num_threads = 1}).value());
    faults_ = backend.get();
    EngineConfig config = CompactingConfig();
    config.compaction.swap_every = 1;
    engine_ = std::make_unique<WatchedEngine>(config, std::move(backend));
  }
  ~CompactionFaultTest() override {
    if (faults_ != nullptr) faults_->HoldWorkerOps(false);
  }

  static Request Balanced(const std::string& id, int max_tokens) {
    return CompactedRequest(id, kPromptTokens, max_tokens, "balanced");
  }
  Answer Plain(int max_tokens) {
    return engine_->Run(CompactedRequest("plain", kPromptTokens, max_tokens, "off"));
  }

  // Calls `posted` on the engine's thread once the first turn's jobs are out and the worker, held,
  // has begun one of them.
  void WatchForJobs(const std::function<void()>& posted) {
    faults_->HoldWorkerOps(true);
    engine_->SetWatch([this, posted, called = false](const EngineLoad& load) mutable {
      if (called || load.jobs_out == 0) return;
      called = true;
      ++num_posted_;
      EXPECT_EQ(load.jobs_out, kTinyUnits);
      EXPECT_TRUE(WaitFor([&] { return faults_->worker_waits(); }));
      posted();
    });
  }
  static bool WaitFor(const std::function<bool()>& holds) {
    const absl::Time until = absl::Now() + absl::Seconds(30);
    while (!holds() && absl::Now() < until) absl::SleepFor(absl::Microseconds(50));
    return holds();
  }

  // Ends a request by `end`, called while jobs are out. What the job that was begun reads and
  // writes stays its own until it is back.
  Answer EndWhileJobsAreOut(Request request, const std::function<void()>& end) {
    WatchForJobs(end);
    Answer answer = engine_->Run(std::move(request));
    engine_->SetWatch({});
    EXPECT_EQ(num_posted_, 1);
    const EngineLoad held =
        engine_->Await([](const EngineLoad& load) { return load.kv_bytes_used == 0; });
    EXPECT_GE(held.jobs_out, 1);
    EXPECT_GT(held.staging_bytes, 0);
    faults_->HoldWorkerOps(false);
    EXPECT_EQ(engine_->Settled().swaps.dropped, static_cast<uint64_t>(kTinyUnits));
    return answer;
  }
  void ExpectCompactsAgain() {
    const uint64_t before = engine_->get()->load().swaps.accepted;
    EngineLoad last;
    static_cast<void>(engine_->RunUntil(
        Balanced("again", kManyTokens),
        [&](const EngineLoad& load) { return load.swaps.accepted >= before + kTinyUnits; }, &last));
    engine_->Settled();
  }

  FaultBackend* faults_ = nullptr;
  int num_posted_ = 0;
  std::unique_ptr<WatchedEngine> engine_;
};

TEST_F(CompactionFaultTest, ARequestEndsByItselfWhileJobsAreOut) {
  const Answer answer = EndWhileJobsAreOut(Balanced("r", 10), [] {});
  EXPECT_EQ(answer.last.reason, FinishReason::kLength);
  EXPECT_EQ(answer.logprobs, Plain(10).logprobs);
  ExpectCompactsAgain();
}

TEST_F(CompactionFaultTest, ARequestIsAbortedWhileJobsAreOut) {
  const Answer answer = EndWhileJobsAreOut(Balanced("r", kManyTokens),
                                           [&] { EXPECT_TRUE(engine_->get()->Abort("r")); });
  EXPECT_EQ(answer.last.reason, FinishReason::kCancelled);
  ExpectCompactsAgain();
}

TEST_F(CompactionFaultTest, ADeadlinePassesWhileJobsAreOut) {
  const absl::Time begin = absl::Now();
  static_cast<void>(Plain(2));
  Request request = Balanced("r", kManyTokens);
  // Late enough for the prompt on a busy machine; the engine then waits for it.
  request.deadline = absl::Now() + 5 * (absl::Now() - begin) + absl::Milliseconds(50);
  const Answer answer = EndWhileJobsAreOut(request, [&] {
    while (absl::Now() <= request.deadline) absl::SleepFor(absl::Milliseconds(1));
  });
  EXPECT_EQ(answer.last.reason, FinishReason::kDeadline);
  ExpectCompactsAgain();
}

TEST_F(CompactionFaultTest, AStepFailsWhileJobsAreOut) {
  const Answer answer = EndWhileJobsAreOut(Balanced("r", kManyTokens),
                                           [&] { faults_->FailOp(faults_->num_ops() + 5); });
  EXPECT_EQ(answer.last.reason, FinishReason::kError);
  EXPECT_EQ(answer.last.status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(IsTransient(answer.last.status));
  ExpectCompactsAgain();
}

TEST_F(CompactionFaultTest, TheEngineEndsWhileJobsAreOut) {
  faults_->HoldWorkerOps(true);
  const auto stream = engine_->get()->Submit(Balanced("r", kManyTokens)).value();
  engine_->Await([](const EngineLoad& load) { return load.jobs_out > 0; });
  // The engine's end waits for the worker, which waits for this.
  std::thread release([faults = std::exchange(faults_, nullptr)] {
    absl::SleepFor(absl::Milliseconds(20));
    faults->HoldWorkerOps(false);
  });
  engine_->Destroy();
  release.join();
  EXPECT_EQ(ReadAll(stream.get()).last.reason, FinishReason::kCancelled);
}

// Where every op of the worker fails, requests do not notice, to the bit.
TEST_F(CompactionFaultTest, AWorkerThatAlwaysFailsChangesNothing) {
  faults_->set_device_is_lost(true);
  faults_->FailWorkerOp(0);
  const Answer answer = engine_->Run(Balanced("r", 60));
  EXPECT_EQ(answer.last.reason, FinishReason::kLength);
  const EngineLoad load = engine_->Settled();
  EXPECT_EQ(load.swaps.accepted, 0u);
  EXPECT_GE(load.swaps.failed, static_cast<uint64_t>(kTinyUnits));
  const Answer plain = Plain(60);
  EXPECT_EQ(answer.ids, plain.ids);
  EXPECT_EQ(answer.logprobs, plain.logprobs);
  EXPECT_EQ(answer.last.receipt.ratio, 1.0);
  faults_->FailWorkerOp(-1);
  ExpectCompactsAgain();
}

// Each KvRead, KvBuild and KvEvaluate of a cycle fails once: its unit keeps its front, the others
// and the request go on.
TEST_F(CompactionFaultTest, EveryWorkerCallMayFailOnce) {
  // The ops of the first turn's jobs: no others are posted.
  int64_t before = faults_->num_worker_ops();
  WatchForJobs([&] {
    engine_->get()->PauseCompaction(true);
    faults_->HoldWorkerOps(false);
  });
  const auto stream = engine_->get()->Submit(Balanced("count", kManyTokens)).value();
  engine_->Await([](const EngineLoad& load) {
    const SwapTotals& swaps = load.swaps;
    return swaps.accepted + swaps.refused + swaps.useless == static_cast<uint64_t>(kTinyUnits);
  });
  EXPECT_TRUE(engine_->get()->Abort("count"));
  static_cast<void>(ReadAll(stream.get()));
  engine_->Settled();
  engine_->get()->PauseCompaction(false);
  const int64_t ops = faults_->num_worker_ops() - before;
  ASSERT_GE(ops, 4 * kTinyUnits);  // read, evaluate, build, evaluate
  for (int64_t n = 0; n < ops; ++n) {
    SCOPED_TRACE(n);
    const SwapTotals totals = engine_->get()->load().swaps;
    before = faults_->num_worker_ops();
    faults_->FailWorkerOp(before + n);
    WatchForJobs([&] {
      faults_->HoldWorkerOps(false);
      EXPECT_TRUE(WaitFor([&] { return faults_->num_worker_ops() > before + n; }));
    });
    const Answer answer = engine_->Run(Balanced("f", 12));
    engine_->SetWatch({});
    engine_->Settled();
    EXPECT_EQ(answer.last.reason, FinishReason::kLength);
    EXPECT_EQ(answer.ids.size(), 12u);
    for (const float logprob : answer.logprobs) ASSERT_TRUE(std::isfinite(logprob));
    const SwapTotals after = engine_->get()->load().swaps;
    // A result that comes back when the request has ended counts as dropped, failed or not.
    EXPECT_GE(after.failed + after.dropped, totals.failed + totals.dropped + 1);
    EXPECT_LE(after.failed, totals.failed + 1);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_EQ(num_posted_, ops + 1);
  ExpectCompactsAgain();
}

// Each op of the engine's own thread fails once, from the step after the one that posted jobs
// until their backs are swapped in (poisoning of what a swap frees included): the requests of that
// step end, the books close, and nothing that comes later notices.
TEST_F(CompactionFaultTest, EveryCallOfTheEnginesThreadMayFailOnce) {
  constexpr int kShortPrompt = 130;  // two blocks behind the sinks', two in the window
  const auto request = [](const char* preset, int max_tokens) {
    return CompactedRequest("r", kShortPrompt, max_tokens, preset);
  };
  int64_t ops = 0, step_ops = INT64_MAX;
  engine_->SetWatch([&](const EngineLoad&) {
    step_ops = std::min(step_ops, faults_->num_ops() - std::exchange(ops, faults_->num_ops()));
  });
  const Answer expected = engine_->Run(request("off", 8));
  // How many ops there are: until all swaps are seen in a load.
  int64_t first = -1, last = -1;
  engine_->SetWatch([&](const EngineLoad& load) {
    if (first < 0 && load.jobs_out > 0) {
      first = faults_->num_ops();
      faults_->HoldWorkerOps(false);
    }
    if (last >= 0 || load.swaps.accepted < static_cast<uint64_t>(kTinyUnits)) return;
    last = faults_->num_ops();
    EXPECT_TRUE(engine_->get()->Abort("r"));
  });
  // A quick worker would have its jobs back before any load shows them.
  faults_->HoldWorkerOps(true);
  static_cast<void>(engine_->Run(request("lossless", kManyTokens)));
  engine_->SetWatch({});
  engine_->Settled();
  ASSERT_GT(first, 0);
  ASSERT_GE(last - first,
            step_ops + 2 * kTinyUnits);  // a step, and two blocks that each swap frees
  for (int64_t n = 0; n < last - first; ++n) {
    SCOPED_TRACE(n);
    bool armed = false;
    engine_->SetWatch([&](const EngineLoad& load) {
      if (armed || load.jobs_out == 0) return;
      armed = true;
      faults_->FailOp(faults_->num_ops() + n);
      faults_->HoldWorkerOps(false);
    });
    faults_->HoldWorkerOps(true);
    const Answer answer = engine_->Run(request("lossless", kManyTokens));
    engine_->SetWatch({});
    engine_->Settled();
    ASSERT_TRUE(armed && !HasFailure());
    ASSERT_EQ(answer.last.reason, FinishReason::kError);
    EXPECT_EQ(answer.last.status.code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(IsTransient(answer.last.status));
    for (const float logprob : answer.logprobs) ASSERT_TRUE(std::isfinite(logprob));
    const Answer after = engine_->Run(request("off", 8));
    ASSERT_EQ(after.logprobs, expected.logprobs);  // bit for bit
  }
  ExpectCompactsAgain();
}

}  // namespace
}  // namespace condense
