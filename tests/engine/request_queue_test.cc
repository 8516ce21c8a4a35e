#include "engine/request_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace condense {
namespace {

Request MakeRequest(const std::string& id, int tokens = 1) {
  Request request;
  request.id = id;
  request.prompt.assign(tokens, 1);
  return request;
}

TEST(RequestQueueTest, TheFirstEventSaysHowManyAreAhead) {
  RequestQueue queue(10, 100, 16);
  static_cast<void>(queue.TryPush(MakeRequest("a"), absl::Now()));
  const auto stream = queue.TryPush(MakeRequest("b"), absl::Now());
  ASSERT_TRUE(stream.ok());
  const auto event = (*stream)->TryNext();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->kind, TokenEvent::Kind::kAccepted);
  EXPECT_EQ(event->queue_position, 1);
}

TEST(RequestQueueTest, FullByRequestsOrByTokensIsRefusedWithTheNumbers) {
  RequestQueue queue(2, 10, 16);
  ASSERT_TRUE(queue.TryPush(MakeRequest("a", 6), absl::Now()).ok());
  const absl::Status by_tokens = queue.TryPush(MakeRequest("b", 5), absl::Now()).status();
  EXPECT_EQ(by_tokens.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(by_tokens.message()).find("limit is 10"), std::string::npos) << by_tokens;
  ASSERT_TRUE(queue.TryPush(MakeRequest("b", 4), absl::Now()).ok());
  const absl::Status by_requests = queue.TryPush(MakeRequest("c", 1), absl::Now()).status();
  EXPECT_EQ(by_requests.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(by_requests.message()).find("limit is 2"), std::string::npos)
      << by_requests;
}

TEST(RequestQueueTest, TakenRequestsStillCountUntilTheyAreStarted) {
  RequestQueue queue(1, 100, 16);
  ASSERT_TRUE(queue.TryPush(MakeRequest("a", 3), absl::Now()).ok());
  std::vector<Submission> taken;
  queue.Take(&taken);
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_FALSE(queue.TryPush(MakeRequest("b"), absl::Now()).ok());
  queue.Started(3);
  EXPECT_EQ(queue.waiting_tokens(), 0);
  EXPECT_TRUE(queue.TryPush(MakeRequest("b"), absl::Now()).ok());
  EXPECT_EQ(queue.live_requests(), 2);
}

TEST(RequestQueueTest, AnIdIsTakenUntilItsRequestEnded) {
  RequestQueue queue(10, 100, 16);
  const auto first = queue.TryPush(MakeRequest("a", 2), absl::Now());
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(queue.TryPush(MakeRequest("a"), absl::Now()).status().code(),
            absl::StatusCode::kAlreadyExists);
  queue.Ended(**first, /*waiting=*/true, 2);
  EXPECT_EQ(queue.waiting_requests(), 0);
  EXPECT_TRUE(queue.TryPush(MakeRequest("a"), absl::Now()).ok());
}

TEST(RequestQueueTest, TheIdOfACancelledRequestIsFreeAtOnce) {
  RequestQueue queue(10, 100, 16);
  const auto first = queue.TryPush(MakeRequest("a", 2), absl::Now());
  ASSERT_TRUE(queue.Cancel("a"));
  const auto second = queue.TryPush(MakeRequest("a", 3), absl::Now());
  ASSERT_TRUE(second.ok());
  queue.Ended(**first, /*waiting=*/true, 2);
  EXPECT_EQ(queue.live_requests(), 1);
  EXPECT_TRUE(queue.Cancel("a"));  // the second
  EXPECT_TRUE((*second)->cancelled());
}

TEST(RequestQueueTest, CancelMarksTheStreamOfALiveRequest) {
  RequestQueue queue(10, 100, 16);
  const auto stream = queue.TryPush(MakeRequest("a"), absl::Now());
  EXPECT_FALSE(queue.Cancel("b"));
  EXPECT_FALSE((*stream)->cancelled());
  EXPECT_TRUE(queue.Cancel("a"));
  EXPECT_TRUE((*stream)->cancelled());
}

TEST(RequestQueueTest, AClosedQueueIsUnavailable) {
  RequestQueue queue(10, 100, 16);
  queue.Close();
  EXPECT_TRUE(queue.closed());
  EXPECT_EQ(queue.TryPush(MakeRequest("a"), absl::Now()).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(RequestQueueTest, AWakeBeforeTheWaitIsNotLost) {
  RequestQueue queue(100, 100, 16);
  std::vector<Submission> taken;
  queue.Wake();
  queue.Take(&taken);
  queue.WaitForWork();  // hangs if Take forgot the wake
}

TEST(RequestQueueTest, ASubmissionWakesTheWaitingEngine) {
  RequestQueue queue(100, 100, 16);
  std::thread producer([&] { static_cast<void>(queue.TryPush(MakeRequest("a"), absl::Now())); });
  queue.WaitForWork();
  std::vector<Submission> taken;
  queue.Take(&taken);
  EXPECT_EQ(taken.size(), 1u);
  producer.join();
  std::thread waker([&] { queue.Wake(); });
  queue.WaitForWork();
  waker.join();
}

TEST(RequestQueueTest, AWaitEndsWhenItsTimePassed) {
  RequestQueue queue(100, 100, 16);
  for (const absl::Duration timeout : {absl::Milliseconds(20), absl::ZeroDuration(),
                                       -absl::Seconds(1), -absl::InfiniteDuration()}) {
    const absl::Time begin = absl::Now();
    queue.WaitForWork(timeout);  // nobody else would end it
    EXPECT_GE(absl::Now() - begin, timeout);
  }
  // A time that passed takes no wake with it.
  queue.Wake();
  queue.WaitForWork();
}

TEST(RequestQueueTest, ASubmissionOrAWakeEndsAWaitBeforeItsTime) {
  RequestQueue queue(100, 100, 16);
  std::vector<Submission> taken;
  std::thread producer([&] { static_cast<void>(queue.TryPush(MakeRequest("a"), absl::Now())); });
  queue.WaitForWork(absl::Hours(24));
  queue.Take(&taken);
  EXPECT_EQ(taken.size(), 1u);
  producer.join();
  std::thread waker([&] { queue.Wake(); });
  queue.WaitForWork(absl::Hours(24));
  waker.join();
  queue.Wake();
  queue.WaitForWork(absl::Hours(24));  // one that came before
}

}  // namespace
}  // namespace condense
