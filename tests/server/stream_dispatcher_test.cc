#include "server/stream_dispatcher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/time/clock.h"

namespace condense {
namespace {

class CountingReader : public StreamReader {
 public:
  bool Ready() const override { return ready.load(); }
  void Pump() override {
    ready = false;
    ++pumps;
  }

  std::atomic<bool> ready{false};
  std::atomic<int> pumps{0};
};

bool Reaches(const std::atomic<int>& counter, int value) {
  const absl::Time until = absl::Now() + absl::Seconds(10);
  while (counter.load() < value && absl::Now() < until) absl::SleepFor(absl::Milliseconds(1));
  return counter.load() == value;
}

TEST(StreamDispatcherTest, OneSignalPumpsAllReadyReadersAndNoOthers) {
  StreamDispatcher dispatcher;
  const auto first = std::make_shared<CountingReader>();
  const auto second = std::make_shared<CountingReader>();
  const auto quiet = std::make_shared<CountingReader>();
  for (const auto& reader : {first, second, quiet}) dispatcher.Add(reader);
  EXPECT_EQ(dispatcher.num_readers(), 3);
  first->ready = true;
  second->ready = true;
  dispatcher.Notify();
  EXPECT_TRUE(Reaches(first->pumps, 1));
  EXPECT_TRUE(Reaches(second->pumps, 1));
  EXPECT_EQ(quiet->pumps, 0);
}

TEST(StreamDispatcherTest, ARemovedReaderIsReleased) {
  StreamDispatcher dispatcher;
  auto reader = std::make_shared<CountingReader>();
  const std::weak_ptr<CountingReader> watch = reader;
  dispatcher.Add(reader);
  dispatcher.Remove(reader.get());
  dispatcher.Remove(reader.get());
  reader.reset();
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(dispatcher.num_readers(), 0);
}

TEST(StreamDispatcherTest, ReadersComeAndGoWhileSignalsArrive) {
  StreamDispatcher dispatcher;
  std::atomic<bool> stop{false};
  std::thread notifier([&] {
    while (!stop) dispatcher.Notify();
  });
  for (int i = 0; i < 300; ++i) {
    auto reader = std::make_shared<CountingReader>();
    reader->ready = true;
    dispatcher.Add(reader);
    if (i % 3 == 0) {
      EXPECT_TRUE(Reaches(reader->pumps, 1));
    }
    dispatcher.Remove(reader.get());
  }
  stop = true;
  notifier.join();
}

}  // namespace
}  // namespace condense
