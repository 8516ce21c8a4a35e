// What the head pools' configuration does to an engine: capacity at the start, growth, cap.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "metrics/metrics.h"
#include "tests/support/engine_harness.h"
#include "tests/support/watched_engine.h"

namespace condense {
namespace {

// 16 slabs: each of the 4 units is estimated at 256 KiB at most. A block of 32 tokens is 4 KiB.
EngineConfig PoolConfig() {
  EngineConfig config = CompactingConfig();
  config.compaction.enabled = false;
  config.kv_memory_bytes = 16 * kTinySlabBytes;
  return config;
}
constexpr double kUnitKib = kTinyUnits * 1024.0;

// Runs a request of so many tokens and waits for these metrics, which are set after the load that
// Settled() waits for.
void OccupyThenAwait(WatchedEngine* engine, const Metrics& metrics, int tokens, double capacity,
                     int growths) {
  SCOPED_TRACE(tokens);
  engine->Run(CompactedRequest("r", tokens, 1, "off"));
  engine->Settled();
  engine->Await([&](const EngineLoad&) {
    return std::abs(metrics.kv_pool_capacity_bytes.value() - capacity) < kTinyUnits &&
           metrics.kv_pool_growths.value() == growths;
  });
}

TEST(PoolFlagsTest, DefaultsAreThreeFifthsThenAFifthAtFourFifths) {
  Metrics metrics("tiny");
  WatchedEngine engine(PoolConfig(), nullptr, &metrics);
  EXPECT_EQ(metrics.kv_pool_capacity_bytes.value(), int64_t(0.6 * 256 * 1024) * kTinyUnits);
  // Four fifths of 153.6 KiB are 30.7 blocks.
  OccupyThenAwait(&engine, metrics, 30 * 32, 0.6 * 256 * kUnitKib, 0);
  OccupyThenAwait(&engine, metrics, 31 * 32, 1.2 * 0.6 * 256 * kUnitKib, kTinyUnits);
}

TEST(PoolFlagsTest, EachOfTheFourMovesTheCapacity) {
  EngineConfig config = PoolConfig();
  config.compaction.pool_preallocate = 0.25;  // 64 KiB
  config.compaction.pool_grow_at = 0.5;       // 8 blocks
  config.compaction.pool_grow_by = 0.5;       // 32 KiB
  config.compaction.pool_cap_bytes = 120 << 10;
  Metrics metrics("tiny");
  WatchedEngine engine(config, nullptr, &metrics);
  EXPECT_EQ(metrics.kv_pool_capacity_bytes.value(), 64 * kUnitKib);
  OccupyThenAwait(&engine, metrics, 8 * 32, 64 * kUnitKib, 0);
  OccupyThenAwait(&engine, metrics, 9 * 32, 96 * kUnitKib, kTinyUnits);
  // Fills the cap, which the capacity may not pass.
  OccupyThenAwait(&engine, metrics, 30 * 32 - 1, 120 * kUnitKib, 2 * kTinyUnits);

  // No request may be longer, though the arena has room for twice as many tokens.
  EXPECT_EQ(engine->model_info().max_request_tokens, 30 * 32);
  const absl::Status status = engine->Submit(CompactedRequest("long", 30 * 32, 2, "off")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

}  // namespace
}  // namespace condense
