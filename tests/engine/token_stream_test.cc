#include "engine/token_stream.h"

#include <gtest/gtest.h>

#include <thread>

namespace condense {
namespace {

TokenEvent Tokens(int count) {
  TokenEvent event;
  event.tokens.resize(count);
  event.text = std::string(count, 'x');
  return event;
}

TokenEvent Finished() {
  TokenEvent event;
  event.kind = TokenEvent::Kind::kFinished;
  return event;
}

TEST(TokenStreamTest, EventsComeInOrderAndNothingFollowsTheLast) {
  TokenStream stream("r", 10);
  EXPECT_FALSE(stream.has_events());
  EXPECT_FALSE(stream.TryNext().has_value());
  ASSERT_TRUE(stream.TryPush(Tokens(2)));
  ASSERT_TRUE(stream.TryPush(Finished()));
  EXPECT_TRUE(stream.has_events());
  EXPECT_EQ(stream.Next()->tokens.size(), 2u);
  EXPECT_EQ(stream.Next()->kind, TokenEvent::Kind::kFinished);
  EXPECT_FALSE(stream.Next().has_value());
  EXPECT_FALSE(stream.has_events());
}

TEST(TokenStreamTest, APushPastTheBoundChangesNothing) {
  TokenStream stream("r", 3);
  ASSERT_TRUE(stream.TryPush(Tokens(2)));
  EXPECT_FALSE(stream.TryPush(Tokens(2)));
  EXPECT_TRUE(stream.TryPush(Tokens(1)));
  EXPECT_TRUE(stream.TryPush(Finished()));  // the end always fits
  EXPECT_EQ(stream.TryNext()->tokens.size(), 2u);
  EXPECT_EQ(stream.TryNext()->tokens.size(), 1u);
}

TEST(TokenStreamTest, RoomReturnsWhenEventsAreTaken) {
  TokenStream stream("r", 2);
  ASSERT_TRUE(stream.TryPush(Tokens(2)));
  EXPECT_FALSE(stream.TryPush(Tokens(1)));
  static_cast<void>(stream.TryNext());
  EXPECT_TRUE(stream.TryPush(Tokens(2)));
}

TEST(TokenStreamTest, NextGivesUpAfterItsTimeout) {
  TokenStream stream("r", 2);
  EXPECT_FALSE(stream.Next(absl::Milliseconds(5)).has_value());
}

TEST(TokenStreamTest, ANextThatWaitsIsWokenByAPush) {
  TokenStream stream("r", 1000);
  std::thread engine([&] {
    for (int i = 0; i < 100; ++i) static_cast<void>(stream.TryPush(Tokens(1)));
    static_cast<void>(stream.TryPush(Finished()));
  });
  int tokens = 0;
  while (const auto event = stream.Next()) tokens += static_cast<int>(event->tokens.size());
  engine.join();
  EXPECT_EQ(tokens, 100);
}

TEST(TokenStreamTest, CancelIsSeenByTheEngine) {
  TokenStream stream("r", 2);
  EXPECT_FALSE(stream.cancelled());
  stream.Cancel();
  stream.Cancel();
  EXPECT_TRUE(stream.cancelled());
}

TEST(TokenStreamDeathTest, APushAfterTheEndIsABug) {
  TokenStream stream("r", 2);
  ASSERT_TRUE(stream.TryPush(Finished()));
  EXPECT_DEATH(static_cast<void>(stream.TryPush(Tokens(1))), "finished_");
}

}  // namespace
}  // namespace condense
