#include "cache/compactor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/reference_backend.h"

namespace condense {
namespace {

constexpr int32_t kB = 32;

// Plays the worker: takes what is posted and returns what the test says.
class CompactorTest : public testing::Test {
 protected:
  void Make(CompactorOptions options = {}, int64_t staging_slabs = 2, int32_t mailbox_jobs = 8,
            std::vector<int32_t> windows = {}, int64_t pool_cap_bytes = 0) {
    const KvLayout layout{.num_layers = 2,
                          .num_kv_heads = 1,
                          .block = {.head_dim = 64, .block_tokens = kB},
                          .layer_window = std::move(windows)};
    options.group = 3;
    options.centred_layers.assign(2, true);
    cache_ = KvCache::Make(&backend_, layout,
                           {.arena_bytes = 80 * layout.slab_bytes(),
                            .staging_bytes = staging_slabs * layout.slab_bytes(),
                            .pool = {.cap_bytes = pool_cap_bytes}})
                 .value();
    mailbox_ = std::make_unique<CompactionMailbox>(mailbox_jobs);
    compactor_ = std::make_unique<Compactor>(cache_.get(), mailbox_.get(), std::move(options));
  }
  void TearDown() override {
    compaction_.reset();
    if (kv_ != nullptr) cache_->Release(kv_.get());
    Work(0, SwapOutcome::kRefused);
    compactor_.reset();
    if (cache_ == nullptr) return;
    EXPECT_EQ(cache_->Stats().slab_bytes, 0);
    EXPECT_EQ(cache_->Stats().staging_bytes, 0);
  }

  void Start(const Compression& compression, int32_t prompt) {
    kv_ = cache_->Open();
    compaction_ = compactor_->Open(compression, kv_.get(), prompt);
    Append(prompt);
  }
  // Rows from the committed ones on, as the forward pass does.
  void Append(int32_t tokens) {
    ASSERT_TRUE(cache_->TryReserve(kv_.get(), tokens));
    for (int32_t i = 0; i < tokens; ++i) {
      const int64_t position = kv_->committed_tokens + i;
      const int32_t slot = compaction_->query_log()->SlotFor(position);
      if (slot < 0) continue;
      for (int32_t layer = 0; layer < 2; ++layer) {
        std::fill_n(compaction_->query_log()->Row(slot, layer),
                    compaction_->query_log()->row_size(), static_cast<float>(position));
      }
    }
    cache_->Commit(kv_.get(), tokens);
  }
  void Turn(bool urgent = false) {
    compactor_->Collect();
    for (int i = 0; i < (urgent ? 1 : 8); ++i) compactor_->Step(compaction_.get(), urgent);
  }
  // Returns all posted jobs. Accepted ones keep `share` of their blocks, full.
  std::vector<CompactionJob> Work(double share, SwapOutcome outcome = SwapOutcome::kAccepted) {
    std::vector<CompactionJob> jobs;
    if (compactor_ != nullptr) compactor_->Collect();
    while (mailbox_ != nullptr && mailbox_->jobs_out() > static_cast<int32_t>(jobs.size())) {
      jobs.push_back(mailbox_->Take().value());
    }
    for (const CompactionJob& job : jobs) {
      CompactionResult result{.ticket = job.ticket, .outcome = outcome};
      result.blocks = job.destinations;
      result.blocks.resize(static_cast<size_t>(static_cast<double>(result.blocks.size()) * share));
      for (KvBlockRef& block : result.blocks) block.count = kB;
      result.quality = {.output_error = 0.01, .log_mass_error = 0.02, .hit_ratio = 0.9};
      result.held_out_queries = 7;
      mailbox_->Return(std::move(result));
    }
    if (compactor_ != nullptr) compactor_->Collect();
    return jobs;
  }
  static Compression Balanced(double ratio = 4.35) {
    return MakeCompression("balanced", std::nullopt, ratio).value();
  }

  ReferenceBackend backend_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<CompactionMailbox> mailbox_;
  std::unique_ptr<Compactor> compactor_;
  std::unique_ptr<KvSequence> kv_;
  std::unique_ptr<SequenceCompaction> compaction_;
};

TEST_F(CompactorTest, OffCompactsNothing) {
  Make();
  kv_ = cache_->Open();
  EXPECT_EQ(compactor_->Open(MakeCompression("off").value(), kv_.get(), 1000), nullptr);
}

TEST_F(CompactorTest, TheRangeLeavesSinksAndWindow) {
  Make();
  Start(Balanced(), 1000);
  Turn();
  const std::vector<CompactionJob> jobs = Work(0.5);
  ASSERT_EQ(jobs.size(), 2u);
  for (const CompactionJob& job : jobs) {
    EXPECT_EQ(job.first_block, 1);
    EXPECT_EQ(job.num_blocks, 28);  // 29 blocks end at 928, the window begins at 936
    EXPECT_EQ(job.front.size(), 31u);
    EXPECT_EQ(job.front[5].first_position, 5 * kB);
    EXPECT_EQ(job.destinations.size(), 28u);
    EXPECT_EQ(job.protection.end_position, 1000);
    for (const KvBlockRef& block : job.destinations) {
      EXPECT_EQ(block.format, KvFormat::kK4V4);
      EXPECT_EQ(block.flags, kKvBias | kKvPosition | kKvCount | kKvCentred);
    }
    EXPECT_EQ(job.policy->name(), "balanced");
  }
  EXPECT_NE(jobs[0].layer, jobs[1].layer);
}

TEST_F(CompactorTest, TooFewSealedBlocksWait) {
  Make();
  Start(Balanced(), 64 + 3 * kB - 1);
  Turn();
  EXPECT_EQ(mailbox_->jobs_out(), 0);
  Append(1);
  Turn();
  EXPECT_EQ(mailbox_->jobs_out(), 2);
}

TEST_F(CompactorTest, EightBitsAloneTakeEverySealedBlockAtOnce) {
  Make();
  Start(MakeCompression("lossless").value(), kB - 1);
  Turn();
  EXPECT_EQ(mailbox_->jobs_out(), 0);
  Append(1);
  Turn();
  const std::vector<CompactionJob> jobs = Work(1.0);
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].first_block, 0);
  EXPECT_EQ(jobs[0].num_blocks, 1);
}

TEST_F(CompactorTest, SlidingWindowLayersAreLeftOut) {
  Make({}, 2, 8, {200, 0});
  Start(Balanced(), 1000);
  Turn();
  const std::vector<CompactionJob> jobs = Work(0.5);
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0].layer, 1);
}

TEST_F(CompactorTest, SwapsHappenAtTheSequencesTurnOnly) {
  Make();
  Start(Balanced(), 1000);
  Turn();
  Work(0.5);
  EXPECT_TRUE(compactor_->relief_coming());
  for (int i = 0; i < 7; ++i) {
    compactor_->Step(compaction_.get(), false);
    EXPECT_EQ(compaction_->swaps_accepted(), 0);
    EXPECT_EQ(kv_->tables[0].committed_entries(), 1000);
  }
  compactor_->Step(compaction_.get(), false);
  EXPECT_EQ(compaction_->swaps_accepted(), 2);
  EXPECT_EQ(kv_->tables[0].committed_entries(), 1000 - 14 * kB);
  EXPECT_FALSE(compactor_->relief_coming());
  EXPECT_DOUBLE_EQ(compaction_->min_hit_ratio(), 0.9);
  EXPECT_DOUBLE_EQ(compaction_->max_output_error(), 0.01);
  const std::vector<SettledJob> settled = compactor_->TakeSettled();
  ASSERT_EQ(settled.size(), 2u);
  EXPECT_EQ(settled[0].held_out_queries, 7);
  EXPECT_TRUE(compactor_->TakeSettled().empty());
}

TEST_F(CompactorTest, TurnsOfSequencesAreStaggered) {
  Make({}, 2, /*mailbox_jobs=*/64);
  std::vector<std::unique_ptr<KvSequence>> kvs;
  std::vector<std::unique_ptr<SequenceCompaction>> compactions;
  for (int i = 0; i < 8; ++i) {
    kvs.push_back(cache_->Open());
    compactions.push_back(compactor_->Open(Balanced(), kvs.back().get(), 200));
    ASSERT_TRUE(cache_->TryReserve(kvs.back().get(), 200));
    cache_->Commit(kvs.back().get(), 200);
  }
  const auto step = [&] {
    for (auto& compaction : compactions) compactor_->Step(compaction.get(), false);
    return Work(0, SwapOutcome::kUseless).size();
  };
  // What the prompts left is posted at once.
  EXPECT_EQ(step(), 16u);
  for (int i = 1; i < 8; ++i) EXPECT_EQ(step(), 2u) << i;
  compactions.clear();
  for (auto& kv : kvs) cache_->Release(kv.get());
}

TEST_F(CompactorTest, ABacklogIsPostedAsPlacesComeFree) {
  Make({}, 2, /*mailbox_jobs=*/1);
  Start(Balanced(), 1000);
  compactor_->Step(compaction_.get(), false);
  EXPECT_EQ(mailbox_->jobs_out(), 1);
  compactor_->Step(compaction_.get(), false);
  EXPECT_EQ(mailbox_->jobs_out(), 1);
  EXPECT_EQ(Work(0.5).front().layer, 0);
  compactor_->Step(compaction_.get(), false);
  EXPECT_EQ(Work(0.5).front().layer, 1);
  EXPECT_EQ(compaction_->swaps_accepted(), 0);
  // Nothing is left over, so there is nothing to post before the turn.
  for (int i = 3; i < 7; ++i) {
    compactor_->Step(compaction_.get(), false);
    EXPECT_EQ(mailbox_->jobs_out(), 0);
  }
  compactor_->Step(compaction_.get(), false);
  EXPECT_EQ(compaction_->swaps_accepted(), 2);
}

TEST_F(CompactorTest, PausedLeavesTheBacklog) {
  Make();
  Start(Balanced(), 1000);
  compactor_->set_paused(true);
  compactor_->Step(compaction_.get(), false);
  EXPECT_EQ(mailbox_->jobs_out(), 0);
  compactor_->set_paused(false);
  compactor_->Step(compaction_.get(), false);
  EXPECT_EQ(mailbox_->jobs_out(), 2);
}

TEST_F(CompactorTest, FormatsAloneSufficeForLowRatiosAndShortSequences) {
  Make();
  Start(MakeCompression("light").value(), 1000);
  Turn();
  std::vector<CompactionJob> jobs = Work(1);
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].policy->name(), "none");
  EXPECT_EQ(jobs[0].destinations[0].format, KvFormat::kK6V4);
  EXPECT_EQ(jobs[0].destinations[0].flags, kKvRun);
  compaction_.reset();
  cache_->Release(kv_.get());
  Start(Balanced(), 400);
  Turn();
  jobs = Work(1);
  EXPECT_EQ(jobs[0].policy->name(), "none");
  EXPECT_EQ(jobs[0].destinations[0].format, KvFormat::kK4V4);
  EXPECT_EQ(jobs[0].destinations[0].flags, kKvRun | kKvCentred);
}

TEST_F(CompactorTest, TargetsKeepToTheRatioWhileTheTailIsLongest) {
  Make({}, 8);
  Start(MakeCompression("balanced", "random", 4.0).value(), 4096 + 64);
  Turn();
  const std::vector<CompactionJob> jobs = Work(0.5);
  ASSERT_EQ(jobs.size(), 2u);
  const double block = static_cast<double>(KvBlockBytes(KvFormat::kK16V16, {64, kB}));
  // 130 blocks; one of sinks, then a window of two, two about to be posted, and the open one.
  EXPECT_NEAR(jobs[0].params.target_bytes, (130 / 4.0 - 1 - 5) * block, 1e-6 * block);
  EXPECT_EQ(jobs[0].params.shared_cosine, 0.0f);
  EXPECT_EQ(jobs[0].num_blocks, 127);
}

TEST_F(CompactorTest, NotchesLowerTheTargetsOfRunningSequences) {
  Make({}, 8);
  Start(MakeCompression("balanced", "random", 5.0).value(), 4096 + 64);
  compactor_->set_notches(1);
  Turn();
  const std::vector<CompactionJob> jobs = Work(0.5);
  ASSERT_EQ(jobs.size(), 2u);
  const double block = static_cast<double>(KvBlockBytes(KvFormat::kK16V16, {64, kB}));
  EXPECT_NEAR(jobs[0].params.target_bytes, (130 / 4.0 - 1 - 5) * block, 1e-6 * block);
}

TEST_F(CompactorTest, NotchesRaiseTheTargetsOfRunningSequencesUpToTwiceTheirOwn) {
  for (const auto& [notches, urgent, ratio] :
       {std::tuple{-1, false, 5.0}, {-100, false, 8.0}, {-1, true, 7.5}, {-100, true, 8.0}}) {
    Make({}, 8);
    Start(MakeCompression("balanced", "random", 4.0).value(), 4096 + 64);
    compactor_->set_notches(notches);
    Turn(urgent);
    const std::vector<CompactionJob> jobs = Work(0.5);
    ASSERT_EQ(jobs.size(), 2u);
    const double block = static_cast<double>(KvBlockBytes(KvFormat::kK16V16, {64, kB}));
    // No range gives more than what makes 60% of its own share.
    const double bytes = std::max(130 / ratio - 1 - 5, 0.6 * 127 / ratio) * block;
    EXPECT_NEAR(jobs[0].params.target_bytes, bytes, 1e-6 * block) << notches << urgent;
    TearDown();
    kv_.reset();
  }
}

TEST_F(CompactorTest, NotchesWidenTheFormatsOfRunningSequences) {
  Make({}, 8);
  Start(MakeCompression("light").value(), 4096);
  for (const auto& [notches, format] :
       {std::pair{2, KvFormat::kK6V4}, {3, KvFormat::kK8V8}, {0, KvFormat::kK6V4}}) {
    compactor_->set_notches(notches);
    Turn();
    const std::vector<CompactionJob> jobs = Work(1.0);
    ASSERT_EQ(jobs.size(), 2u);
    EXPECT_EQ(jobs[0].destinations[0].format, format) << notches;
    Append(512);
  }
}

TEST_F(CompactorTest, UnitsShareOneCosineAndNotTheirBytes) {
  CompactorOptions options;
  options.merge_curves = MergeCurves(2);
  MergeCurves::Shares alike, distinct;
  alike.fill(0.2f);
  distinct.fill(0.97f);
  options.merge_curves.Set(0, alike);
  options.merge_curves.Set(1, distinct);
  Make(options, 8);
  Start(Balanced(), 4096);
  Turn();
  std::vector<CompactionJob> jobs = Work(0.5);
  ASSERT_EQ(jobs.size(), 2u);
  if (jobs[0].layer == 1) std::swap(jobs[0], jobs[1]);
  EXPECT_GT(jobs[0].params.shared_cosine, 0.9f);
  EXPECT_EQ(jobs[0].policy->name(), "balanced");
  // Side arrays would cost the distinct one more than what merging so little saves.
  EXPECT_EQ(jobs[1].policy->name(), "none");
  EXPECT_GT(jobs[1].params.target_bytes, 2 * jobs[0].params.target_bytes);
}

TEST_F(CompactorTest, UnitsThatFindFactsAgainDoNotMergeAndOthersMakeUpForThem) {
  CompactorOptions options;
  options.recall = {0.5f, 0.1f};
  Make(options, 8);
  Start(Balanced(), 4096);
  Turn();
  std::vector<CompactionJob> jobs = Work(0.5);
  ASSERT_EQ(jobs.size(), 2u);
  if (jobs[0].layer == 1) std::swap(jobs[0], jobs[1]);
  EXPECT_EQ(jobs[0].policy->name(), "none");
  EXPECT_EQ(jobs[0].destinations[0].format, KvFormat::kK6V4);
  EXPECT_EQ(jobs[0].destinations[0].flags, kKvRun);
  // Above the limit too, but a quarter of the units at most is spared.
  EXPECT_EQ(jobs[1].policy->name(), "balanced");
  const float cosine = jobs[1].params.shared_cosine;
  compaction_.reset();
  cache_->Release(kv_.get());
  kv_.reset();
  compactor_.reset();
  Make({}, 8);
  Start(Balanced(), 4096);
  Turn();
  EXPECT_LT(cosine, Work(0.5)[0].params.shared_cosine);
}

TEST_F(CompactorTest, WhatATextLeavesCorrectsTheCurves) {
  Make({}, 8);
  Start(Balanced(), 2048);
  Turn();
  const float first = Work(1.0)[0].params.shared_cosine;  // nothing merged at all
  Turn();
  Append(1024);
  Turn();
  const std::vector<CompactionJob> jobs = Work(0.5);
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_LT(jobs[0].params.shared_cosine, first);
}

TEST_F(CompactorTest, ALongRangeTakesSeveralJobsWithinOneBudget) {
  Make({}, 16);
  Start(Balanced(), 9500);
  Turn();
  const std::vector<CompactionJob> jobs = Work(0.5);
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].num_blocks, 256);
  const double whole = static_cast<double>(KvBlockBytes(KvFormat::kK16V16, {64, kB}));
  EXPECT_NEAR(jobs[0].params.target_bytes / (256 * whole), 1 / 4.35, 0.03);
}

TEST_F(CompactorTest, LaterRangesFollowTheCompactedOnes) {
  Make();
  Start(Balanced(), 1000);
  Turn();
  Work(0.5);
  Turn();
  EXPECT_EQ(compaction_->swaps_accepted(), 2);
  Append(2 * kB);
  Turn();
  const std::vector<CompactionJob> jobs = Work(0.5);
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].first_block, 15);
  EXPECT_EQ(jobs[0].num_blocks, 2);
  EXPECT_EQ(jobs[0].front[15].first_position, 29 * kB);
  EXPECT_EQ(jobs[0].front[1].block.format, KvFormat::kK4V4);
}

TEST_F(CompactorTest, ARefusalCoolsTheUnitAndSparesIt) {
  Make();
  Start(Balanced(6.0), 1000);
  Turn();
  const double first = Work(0, SwapOutcome::kRefused)[0].params.target_bytes;
  std::vector<int> tries;
  double last = first;
  for (int turn = 1; turn <= 16; ++turn) {
    Turn();
    const std::vector<CompactionJob> jobs = Work(0, SwapOutcome::kRefused);
    if (jobs.empty()) continue;
    tries.push_back(turn);
    EXPECT_GT(jobs[0].params.target_bytes, last);
    last = jobs[0].params.target_bytes;
  }
  EXPECT_THAT(tries, testing::ElementsAre(1, 3, 7, 15));
  EXPECT_EQ(kv_->tables[0].committed_entries(), 1000);
  EXPECT_EQ(cache_->Stats().staging_bytes, 0);
}

TEST_F(CompactorTest, AnEndedSequencesJobsAreDroppedOnReturn) {
  Make();
  Start(Balanced(), 1000);
  Turn();
  const CompactionJob taken = mailbox_->Take().value();
  compaction_.reset();
  EXPECT_EQ(mailbox_->jobs_out(), 1);  // the other was recalled
  cache_->Release(kv_.get());
  EXPECT_EQ(cache_->Stats().used_bytes, 0);
  EXPECT_GT(cache_->Stats().staging_bytes, 0);
  mailbox_->Return({.ticket = taken.ticket, .outcome = SwapOutcome::kUseless});
  compactor_->Collect();
  EXPECT_EQ(cache_->Stats().staging_bytes, 0);
  const std::vector<SettledJob> settled = compactor_->TakeSettled();
  ASSERT_EQ(settled.size(), 2u);
  EXPECT_TRUE(settled[0].dropped);
}

TEST_F(CompactorTest, ASequenceMayEndBetweenResultAndTurn) {
  Make();
  Start(Balanced(), 1000);
  Turn();
  Work(0.5);
  compaction_.reset();
  EXPECT_FALSE(compactor_->relief_coming());
  EXPECT_EQ(cache_->Stats().staging_bytes, 0);
  EXPECT_EQ(kv_->tables[0].committed_entries(), 1000);
}

TEST_F(CompactorTest, PausedPostsNothingButTakesWhatIsBack) {
  Make();
  Start(Balanced(), 1000);
  Turn();
  Work(0.5);
  compactor_->set_paused(true);
  Append(2 * kB);
  Turn();
  EXPECT_EQ(compaction_->swaps_accepted(), 2);
  Turn();
  EXPECT_EQ(mailbox_->jobs_out(), 0);
  compactor_->set_paused(false);
  Turn();
  EXPECT_EQ(mailbox_->jobs_out(), 2);
}

TEST_F(CompactorTest, ASmallReserveMakesSmallerJobsAndNoneIsCounted) {
  Make({}, 1);
  Start(Balanced(), 4000);
  const int64_t most =
      cache_->StageableBlocks(KvFormat::kK4V4, kKvBias | kKvPosition | kKvCount | kKvCentred);
  Turn();
  EXPECT_EQ(compactor_->TakeNoReserve(), 2);  // behind the prompt, and at the turn
  const std::vector<CompactionJob> jobs = Work(0.5);
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0].num_blocks, most);
}

TEST_F(CompactorTest, UrgentTurnsComeAtEveryStepAndGoFurther) {
  Make({}, 8);
  Start(Balanced(), 4096);
  Turn(/*urgent=*/true);
  const std::vector<CompactionJob> jobs = Work(0, SwapOutcome::kUseless);
  ASSERT_EQ(jobs.size(), 2u);
  Turn();
  const double usual = Work(0.5)[0].params.target_bytes;
  EXPECT_LT(jobs[0].params.target_bytes, 0.8 * usual);
}

TEST_F(CompactorTest, WhatIsCompactedMergesFurtherOnceWhenMemoryRunsOut) {
  CompactorOptions options;
  options.recall = {0.5f, 0.0f};  // the first unit keeps what it has
  Make(options, 8);
  Start(Balanced(), 4096);
  Turn();
  const std::vector<CompactionJob> first = Work(0.5);
  Turn();
  ASSERT_EQ(compaction_->swaps_accepted(), 2);
  Turn();
  EXPECT_TRUE(Work(0.5).empty());
  const int64_t bytes = cache_->Held(*kv_).bytes;
  Turn(/*urgent=*/true);
  const std::vector<CompactionJob> further = Work(0.5);
  ASSERT_EQ(further.size(), 1u);
  const CompactionJob& job = further[0];
  EXPECT_EQ(job.layer, 1);
  EXPECT_EQ(job.first_block, 1);
  EXPECT_EQ(job.num_blocks, first[0].num_blocks / 2);
  EXPECT_EQ(job.policy->name(), "balanced");
  EXPECT_EQ(job.params.shared_cosine, 0.0f);
  for (const KvBlockRef& block : job.destinations) {
    EXPECT_EQ(block.format, KvFormat::kK4V4);
    EXPECT_EQ(block.flags, kKvBias | kKvPosition | kKvCount | kKvCentred);
  }
  const double held = job.num_blocks * static_cast<double>(KvBlockBytes(KvFormat::kK4V4, {64, kB},
                                                                        job.destinations[0].flags));
  EXPECT_NEAR(job.params.target_bytes, held / 1.5, 1.0);
  Turn(/*urgent=*/true);
  EXPECT_LT(cache_->Held(*kv_).bytes, bytes);
  Turn(/*urgent=*/true);
  EXPECT_TRUE(Work(0.5).empty());
}

TEST_F(CompactorTest, APoolNearItsCapEvictsWhatWasAttendedLongestAgo) {
  Make({}, 8, 8, {}, 140 * KvBlockBytes(KvFormat::kK16V16, {64, kB}));
  Start(Balanced(), 512);
  std::vector<CompactionJob> evictions;
  for (int i = 0; i < 400 && evictions.empty(); ++i) {
    if (i % 2 == 0) Append(cache_->pool(0).fill() < 0.7 ? 512 : 64);
    Turn();
    for (CompactionJob& job : Work(1.0)) {  // nothing merges, so it fills up
      if (job.policy->name() != "lru") continue;
      EXPECT_GE(cache_->pool(0).fill(), 0.9);
      evictions.push_back(std::move(job));
    }
  }
  ASSERT_EQ(evictions.size(), 2u);
  const CompactionJob& job = evictions[0];
  EXPECT_EQ(job.first_block, 1);
  EXPECT_EQ(job.front[job.first_block].block.format, KvFormat::kK4V4);
  EXPECT_EQ(job.destinations[0].format, KvFormat::kK4V4);
  const auto bytes = static_cast<double>(
      job.num_blocks * KvBlockBytes(KvFormat::kK4V4, {64, kB}, job.front[1].block.flags));
  EXPECT_NEAR(job.params.target_bytes / bytes, 0.9, 0.01);
}

TEST_F(CompactorTest, QueriesAreThoseOfTheirPositionsAndHeldOutOnesAreApart) {
  Make();
  Start(Balanced(), 1000);
  Append(5);
  Turn();
  const std::vector<CompactionJob> jobs = Work(0.5);
  const auto positions = [](const QuerySamples& samples) {
    std::vector<int> result;
    for (int32_t i = 0; i < samples.size(); ++i) {
      result.push_back(static_cast<int>(samples.q[i * 3 * 64]));
    }
    return result;
  };
  const std::vector<int> held_out = positions(jobs[0].held_out);
  const std::vector<int> evidence = positions(jobs[0].evidence);
  EXPECT_EQ(held_out.size(), 8u);
  EXPECT_EQ(held_out.back(), 1004);
  EXPECT_EQ(jobs[0].held_out.visible.back(), 31 * kB);
  EXPECT_TRUE(std::is_sorted(evidence.begin(), evidence.end()));
  std::set<int> all(evidence.begin(), evidence.end());
  all.insert(held_out.begin(), held_out.end());
  EXPECT_EQ(all.size(), evidence.size() + held_out.size());
  // Even ones see what was there; those before the range's first entries are left out.
  EXPECT_GE(evidence.front(), kB);
  EXPECT_EQ(jobs[0].evidence.visible.front(), evidence.front() + 1);
  EXPECT_EQ(std::count_if(all.begin(), all.end(), [](int p) { return p >= 1005 - 32; }), 32);
}

// Whatever happens in whatever order, the books balance and every ticket is settled once.
TEST_F(CompactorTest, RandomLivesLeaveNothingBehind) {
  std::mt19937 random(7);
  Make({}, 2, 5);
  struct Live {
    std::unique_ptr<KvSequence> kv;
    std::unique_ptr<SequenceCompaction> compaction;
  };
  std::vector<Live> live;
  std::vector<CompactionJob> out;
  int64_t accepted = 0, dropped = 0;
  for (int step = 0; step < 20000; ++step) {
    const uint32_t dice = random() % 100;
    if (dice < 3 && live.size() < 4) {
      Live sequence{cache_->Open(), nullptr};
      sequence.compaction = compactor_->Open(Balanced(), sequence.kv.get(), 300);
      live.push_back(std::move(sequence));
    } else if (dice < 5 && !live.empty()) {
      Live& victim = live[random() % live.size()];
      victim.compaction.reset();
      cache_->Release(victim.kv.get());
      std::swap(victim, live.back());
      live.pop_back();
    } else if (dice < 30) {
      compactor_->Collect();
      while (mailbox_->jobs_out() > 0 && out.size() < 3 && random() % 2 == 0) {
        if (mailbox_->jobs_out() == static_cast<int32_t>(out.size())) break;
        out.push_back(mailbox_->Take().value());
      }
      if (!out.empty()) {
        CompactionResult result{.ticket = out.front().ticket,
                                .outcome = static_cast<SwapOutcome>(random() % 4)};
        if (result.outcome == SwapOutcome::kFailed) result.status = absl::InternalError("test");
        result.blocks = out.front().destinations;
        result.blocks.resize(1 + random() % result.blocks.size());
        for (KvBlockRef& block : result.blocks) block.count = static_cast<uint16_t>(kB);
        out.erase(out.begin());
        mailbox_->Return(std::move(result));
      }
    } else if (!live.empty()) {
      Live& sequence = live[random() % live.size()];
      const int32_t tokens = random() % 8 == 0 ? 300 : 9;
      if (cache_->TryReserve(sequence.kv.get(), tokens)) cache_->Commit(sequence.kv.get(), tokens);
      compactor_->Collect();
      compactor_->Step(sequence.compaction.get(), random() % 4 == 0);
    }
    int64_t used = 0;
    for (const Live& sequence : live) used += cache_->Held(*sequence.kv).bytes;
    ASSERT_EQ(cache_->Stats().used_bytes, used) << step;
    for (const SettledJob& job : compactor_->TakeSettled()) {
      accepted += !job.dropped && job.outcome == SwapOutcome::kAccepted;
      dropped += job.dropped;
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(dropped, 10);
  for (Live& sequence : live) {
    sequence.compaction.reset();
    cache_->Release(sequence.kv.get());
  }
  for (const CompactionJob& job : out) {
    mailbox_->Return({.ticket = job.ticket, .outcome = SwapOutcome::kUseless});
  }
  compactor_->Collect();
}

}  // namespace
}  // namespace condense
