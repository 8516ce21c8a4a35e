#include "engine/quality/bucket_ring.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace condense {
namespace {

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

int Sum(const BucketRing<int>& ring, absl::Time now) {
  int sum = 0;
  ring.ForEach(now, [&sum](int bucket) { sum += bucket; });
  return sum;
}

TEST(BucketRingTest, KeepsTheWindowAndForgetsWhatIsOlder) {
  BucketRing<int> ring(absl::Seconds(10), 5, 0);
  *ring.At(At(0)) += 1;
  *ring.At(At(3)) += 10;
  EXPECT_EQ(Sum(ring, At(9.9)), 11);
  EXPECT_EQ(Sum(ring, At(10)), 10);  // the slice [0, 2) has left
  EXPECT_EQ(Sum(ring, At(12)), 0);
  EXPECT_EQ(Sum(ring, At(9.9)), 11);  // asking changes nothing
}

TEST(BucketRingTest, LateSamplesCountWhileTheirSliceIsThere) {
  BucketRing<int> ring(absl::Seconds(10), 5, 0);
  *ring.At(At(20)) += 1;
  ASSERT_NE(ring.At(At(12)), nullptr);
  *ring.At(At(12)) += 10;
  EXPECT_EQ(ring.At(At(11.9)), nullptr);
  EXPECT_EQ(Sum(ring, At(20)), 11);
}

TEST(BucketRingTest, TimesBeforeTheEpochAreTimes) {
  BucketRing<int> ring(absl::Seconds(10), 5, 0);
  *ring.At(At(-1)) += 1;
  *ring.At(At(1)) += 10;
  EXPECT_EQ(Sum(ring, At(1)), 11);
  EXPECT_EQ(Sum(ring, At(8)), 10);
}

TEST(BucketRingTest, ALongPauseEmptiesIt) {
  BucketRing<int> ring(absl::Seconds(10), 5, 0);
  *ring.At(At(1)) += 1;
  *ring.At(At(1e6)) += 10;
  EXPECT_EQ(Sum(ring, At(1e6)), 10);
  ring.Clear();
  EXPECT_EQ(Sum(ring, At(1e6)), 0);
}

TEST(BucketRingTest, AgreesWithAListOfAllSamples) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> step(-1, 2);
  BucketRing<int> ring(absl::Seconds(6), 4, 0);
  std::map<int64_t, int> slices;  // of 1.5 s
  double now = 0;
  double latest = 0;
  for (int i = 0; i < 5000; ++i) {
    now += step(random);
    latest = std::max(latest, now);
    const int64_t slice = static_cast<int64_t>(std::floor(now / 1.5));
    const int64_t newest = static_cast<int64_t>(std::floor(latest / 1.5));
    int* bucket = ring.At(At(now));
    ASSERT_EQ(bucket != nullptr, slice > newest - 4) << i;
    if (bucket != nullptr) {
      ++*bucket;
      ++slices[slice];
    }
    int expected = 0;
    for (int64_t s = newest - 3; s <= newest; ++s) expected += slices.contains(s) ? slices[s] : 0;
    ASSERT_EQ(Sum(ring, At(latest)), expected) << i;
  }
}

}  // namespace
}  // namespace condense
