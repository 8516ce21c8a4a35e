#include "tools/eval/eval_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "tests/tools/eval/byte_tokenizer.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

TEST(EvalTextTest, PiecesAreSpreadFromTheFirstTokenToTheLast) {
  const ByteTokenizer tokenizer;
  const EvalText text("name", "0123456789", tokenizer);
  const auto piece = [&](int64_t index, int64_t count, int64_t length) {
    const auto tokens = text.Piece(index, count, length);
    return tokenizer.Decode({tokens.begin(), tokens.end()}, false);
  };
  EXPECT_EQ(piece(0, 1, 4), "0123");
  EXPECT_EQ(piece(0, 2, 4), "0123");
  EXPECT_EQ(piece(1, 2, 4), "6789");
  EXPECT_EQ(piece(1, 3, 4), "3456");
  EXPECT_EQ(piece(3, 5, 10), "0123456789");
}

TEST(EvalTextTest, PiecesThatFitBesideEachOtherDoNotOverlap) {
  const EvalText text("name", std::string(1003, 'x'), ByteTokenizer());
  for (int64_t count = 2; count < 20; ++count) {
    const int64_t length = text.size() / count;
    for (int64_t i = 1; i < count; ++i) {
      EXPECT_GE(text.Piece(i, count, length).data(),
                text.Piece(i - 1, count, length).data() + length);
    }
  }
}

TEST(SentenceStartTest, FollowsAnEndOfASentenceOrALine) {
  const ByteTokenizer tokenizer;
  const std::vector<TokenId> tokens = tokenizer.Encode("One two. Three\nfour", {});
  EXPECT_EQ(SentenceStart(tokens, 0, tokenizer), 8);
  EXPECT_EQ(SentenceStart(tokens, 8, tokenizer), 8);
  EXPECT_EQ(SentenceStart(tokens, 9, tokenizer), 15);
  EXPECT_EQ(SentenceStart(tokens, 16, tokenizer), 16);
}

TEST(ReadEvalTextTest, SaysWhatIsWrongWithAFile) {
  const auto missing = ReadEvalText("/no/such/text");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/no/such/text"));
  EXPECT_FALSE(ReadEvalText("/tmp").ok());
  const std::string path = ::testing::TempDir() + "/eval_text_test.txt";
  std::ofstream(path).close();
  EXPECT_EQ(ReadEvalText(path).status().code(), absl::StatusCode::kInvalidArgument);
  std::ofstream(path) << "a\nb";
  EXPECT_EQ(*ReadEvalText(path), "a\nb");
  std::remove(path.c_str());
}

}  // namespace
}  // namespace condense
