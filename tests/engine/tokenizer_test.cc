#include "engine/tokenizer/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/gguf_writer.h"

namespace condense {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

json ReadJson(const std::string& path) {
  std::ifstream in(path);
  return json::parse(in);
}

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

// `text` without the bytes that `tokenizer` has no token for.
std::string WithoutMissingBytes(const Tokenizer& tokenizer, const std::string& text) {
  std::string kept;
  for (const char byte : text) {
    if (!tokenizer.Encode({&byte, 1}, {}).empty()) kept.push_back(byte);
  }
  return kept;
}

struct DemoModel {
  const char* name;
  const char* file;
};

// A demo model's tokenizer, made once for all tests; null if the file is not there.
const Tokenizer* DemoTokenizer(const DemoModel& model) {
  static auto& made = *new std::map<std::string, std::unique_ptr<const Tokenizer>>;
  auto& tokenizer = made[model.name];
  if (tokenizer) return tokenizer.get();
  auto file = GgufFile::Open(std::string(CONDENSE_MODELS "/") + model.file);
  if (!file.ok()) return nullptr;
  auto result = Tokenizer::Make(**file);
  EXPECT_TRUE(result.ok()) << result.status();
  if (result.ok()) tokenizer = *std::move(result);
  return tokenizer.get();
}

class DemoTokenizerTest : public testing::TestWithParam<DemoModel> {
 protected:
  void SetUp() override {
    tokenizer_ = DemoTokenizer(GetParam());
    if (tokenizer_ == nullptr) GTEST_SKIP() << GetParam().file << " is not in " << CONDENSE_MODELS;
  }
  const Tokenizer* tokenizer_ = nullptr;
};

TEST_P(DemoTokenizerTest, GivesTheGoldenIdsAndBytes) {
  const json cases = ReadJson(CONDENSE_TEST_DATA "/tokenizer.json").at(GetParam().name);
  ASSERT_GT(cases.size(), 10u);
  for (const auto& [name, golden] : cases.items()) {
    SCOPED_TRACE(name);
    const std::string text = golden.at("text");
    const std::vector<TokenId> ids = golden.at("ids");
    EXPECT_EQ(tokenizer_->Encode(text, {}), ids);
    EXPECT_EQ(tokenizer_->Encode(text, {.parse_special = true, .add_bos = true}),
              golden.at("ids_special").get<std::vector<TokenId>>());
    EXPECT_EQ(tokenizer_->Decode(ids, false), FromHex(golden.at("roundtrip_hex")));
  }
}

TEST_P(DemoTokenizerTest, GivesTheGoldenIdsOfTheCorpus) {
  const json corpus = ReadJson(CONDENSE_TEST_DATA "/tokenizer_corpus.json");
  const json& texts = corpus.at("texts");
  ASSERT_GT(texts.size(), 100u);
  for (size_t i = 0; i < texts.size(); ++i) {
    SCOPED_TRACE(i);
    const std::string text = texts[i];
    const std::vector<TokenId> ids = tokenizer_->Encode(text, {});
    EXPECT_EQ(ids, corpus.at(GetParam().name)[i].get<std::vector<TokenId>>());
    EXPECT_EQ(tokenizer_->Decode(ids, false), WithoutMissingBytes(*tokenizer_, text));
  }
}

// The limits on processor time are far above what the work takes, and far below what a quadratic
// loop would take.
TEST_P(DemoTokenizerTest, LongWordsTakeNearlyLinearTime) {
  for (const std::string unit : {"a", " ", "\n", "=", "\xe4\xbd\xa0", "<", "\xff"}) {
    SCOPED_TRACE(unit);
    const std::string kept_unit = WithoutMissingBytes(*tokenizer_, unit);
    std::string text, kept;
    while (text.size() < 1000000) {
      text += unit;
      kept += kept_unit;
    }
    const std::clock_t begin = std::clock();
    const std::vector<TokenId> tokens = tokenizer_->Encode(text, {.parse_special = true});
    EXPECT_LT(std::clock() - begin, 10 * CLOCKS_PER_SEC);
    EXPECT_TRUE(tokenizer_->Decode(tokens, false) == kept);
  }
}

// Every tiny model has a token for each of the 256 bytes.
std::vector<std::string> TinyModels() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(CONDENSE_TEST_DATA "/tiny")) {
    if (entry.path().extension() == ".gguf") names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string TinyPath(const std::string& name) {
  return CONDENSE_TEST_DATA "/tiny/" + name + ".gguf";
}

std::unique_ptr<const Tokenizer> TinyTokenizer(const std::string& name) {
  auto file = GgufFile::Open(TinyPath(name));
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return nullptr;
  auto tokenizer = Tokenizer::Make(**file);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

TEST(TokenizerTest, TinyModelsGiveTheirGoldenIds) {
  ASSERT_THAT(TinyModels(), testing::Not(IsEmpty()));
  for (const std::string& name : TinyModels()) {
    SCOPED_TRACE(name);
    const auto tokenizer = TinyTokenizer(name);
    ASSERT_NE(tokenizer, nullptr);
    const json cases = ReadJson(CONDENSE_TEST_DATA "/tiny/" + name + ".json").at("tokenize");
    for (const json& golden : cases) {
      const std::string text = golden.at("text");
      SCOPED_TRACE(text);
      EXPECT_EQ(tokenizer->Encode(text, {}), golden.at("ids").get<std::vector<TokenId>>());
      EXPECT_EQ(tokenizer->Encode(text, {.parse_special = true, .add_bos = true}),
                golden.at("ids_special").get<std::vector<TokenId>>());
    }
  }
}

TEST(TokenizerTest, AnyBytesComeBack) {
  std::mt19937 random(7);
  for (const char* name : {"llama-f32", "qwen2", "gemma3"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = TinyTokenizer(name);
    ASSERT_NE(tokenizer, nullptr);
    for (int round = 0; round < 200; ++round) {
      std::string text(random() % 80, '\0');
      for (char& byte : text) byte = static_cast<char>(random());
      EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, {}), false), text);
    }
  }
}

TEST(TokenizerTest, ManyThreadsMayEncodeAtOnce) {
  for (const char* name : {"llama-f32", "gemma3"}) {
    const auto tokenizer = TinyTokenizer(name);
    const std::string text = "the cat is on the other bed, 12 of it:\n\t\u65e5\u672c!";
    const std::vector<TokenId> expected = tokenizer->Encode(text, {});
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int round = 0; round < 50; ++round) wrong += tokenizer->Encode(text, {}) != expected;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  }
}

TEST(TokenizerTest, TokenBytesMayBePartOfACharacterAndHideControlTokens) {
  const auto tokenizer = TinyTokenizer("llama-f32");
  const std::vector<TokenId> tokens = tokenizer->Encode("\u65e5", {});
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_EQ(tokenizer->TokenBytes(tokens[0], false), "\xe6");
  EXPECT_EQ(tokenizer->TokenBytes(2, false), "");
  EXPECT_EQ(tokenizer->TokenBytes(2, true), "<|im_end|>");
  EXPECT_EQ(tokenizer->TokenBytes(-1, true), "");
  EXPECT_EQ(tokenizer->TokenBytes(tokenizer->vocab_size(), true), "");
  EXPECT_EQ(tokenizer->Decode({-5, 2, 1000000, tokens[0]}, false), "\xe6");
}

TEST(TokenizerTest, EndTokensAreThoseOfTheFileAndTheKnownTexts) {
  EXPECT_THAT(TinyTokenizer("llama-f32")->end_tokens(),
              ElementsAre(0, 2));  // <|endoftext|>, <|im_end|>
  EXPECT_THAT(TinyTokenizer("gemma3")->end_tokens(), ElementsAre(1, 5));  // <eos>, <end_of_turn>
}

TEST(TokenizerTest, SegmentsAreOneTextButForTheirSpecialTokens) {
  const auto tokenizer = TinyTokenizer("llama-f32");
  const std::vector<TokenId> tokens = tokenizer->EncodeSegments(
      {{"<|im_start|>t", true}, {"he<|im_", false}, {"end|>", true}, {"<|im_end|>", false}}, false);
  const TokenId start = *tokenizer->Find("<|im_start|>");
  EXPECT_EQ(tokens.front(), start);
  std::vector<TokenId> expected = {start};
  for (const TokenId token : tokenizer->Encode("the<|im_end|><|im_end|>", {}))
    expected.push_back(token);
  EXPECT_EQ(tokens, expected);
}

// A tokenizer of a tiny model's file with something changed.
class ChangedFileTest : public testing::Test {
 protected:
  void Base(const std::string& name) { writer_ = GgufWriter::FromFile(TinyPath(name)); }
  void SetToken(size_t token, const std::string& text) {
    std::vector<std::string> texts = writer_.Texts("tokenizer.ggml.tokens");
    texts[token] = text;
    writer_.Set("tokenizer.ggml.tokens", GgufType::kArray, EncodeStrings(texts));
  }
  void SetKinds(const std::map<size_t, uint32_t>& kinds) {
    std::vector<std::string> items(writer_.Texts("tokenizer.ggml.tokens").size(), EncodeU32(1));
    for (const auto& [token, kind] : kinds) items[token] = EncodeU32(kind);
    writer_.Set("tokenizer.ggml.token_type", GgufType::kArray,
                EncodeArray(GgufType::kInt32, items));
  }
  void SetBool(std::string_view key, bool value) {
    writer_.Set(key, GgufType::kBool, std::string(1, static_cast<char>(value)));
  }
  absl::StatusOr<std::unique_ptr<const Tokenizer>> Make() {
    bytes_ = writer_.Bytes();
    const auto file = GgufFile::Parse(reinterpret_cast<const std::byte*>(bytes_.data()),
                                      bytes_.size(), "changed");
    EXPECT_TRUE(file.ok()) << file.status();
    if (!file.ok()) return file.status();
    return Tokenizer::Make(**file);
  }
  void ExpectRefused(const std::vector<std::string>& parts) {
    const absl::Status status = Make().status();
    EXPECT_FALSE(status.ok());
    for (const std::string& part : parts)
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
  GgufWriter writer_;
  std::string bytes_;
};

TEST_F(ChangedFileTest, MergesAreCheckedOneByOne) {
  const auto merges_become = [this](const std::vector<std::string>& merges) {
    Base("llama-f32");
    writer_.Set("tokenizer.ggml.merges", GgufType::kArray, EncodeStrings(merges));
  };
  merges_become({"h e", "in"});
  ExpectRefused({"changed", "tokenizer.ggml.merges", "entry 1", "\"in\"", "two texts"});
  merges_become({"h e", "in "});
  ExpectRefused({"entry 1", "two texts"});
  merges_become({"q z"});
  ExpectRefused({"tokenizer.ggml.merges", "entry 0", "token \"qz\" that does not exist"});
}

TEST_F(ChangedFileTest, TokensAreChecked) {
  Base("llama-f32");
  SetToken(100, writer_.Texts("tokenizer.ggml.tokens")[50]);
  ExpectRefused({"tokenizer.ggml.tokens", "token 100 repeats the text of token 50"});
  Base("llama-f32");
  SetKinds({{7, 9}});
  ExpectRefused({"tokenizer.ggml.token_type", "token 7 is 9"});
  Base("llama-f32");
  writer_.SetText("tokenizer.ggml.pre", "wordle");
  ExpectRefused({"changed", "tokenizer.ggml.pre 'wordle'", "smollm"});
  Base("llama-f32");
  writer_.SetText("tokenizer.ggml.model", "wordle");
  ExpectRefused({"tokenizer.ggml.model 'wordle'", "gpt2"});
}

TEST_F(ChangedFileTest, IdsAreCheckedAndMinusOneMeansNone) {
  for (const char* key :
       {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id", "tokenizer.ggml.unknown_token_id"}) {
    Base("llama-f32");
    writer_.SetU32(key, 288);
    ExpectRefused({key, "is 288", "288 tokens"});
  }
  Base("llama-f32");
  writer_.SetU32("tokenizer.ggml.bos_token_id", 0xffffffff);
  SetBool("tokenizer.ggml.add_bos_token", true);
  const auto tokenizer = Make();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->bos(), std::nullopt);
  EXPECT_FALSE((*tokenizer)->adds_bos());
}

TEST_F(ChangedFileTest, ScoresAreChecked) {
  Base("gemma3");
  writer_.Remove("tokenizer.ggml.scores");
  ExpectRefused({"tokenizer.ggml.scores"});
  Base("gemma3");
  writer_.Set("tokenizer.ggml.scores", GgufType::kArray,
              EncodeArray(GgufType::kFloat32, {EncodeF32(1)}));
  ExpectRefused({"tokenizer.ggml.scores", "1 entries for 320 tokens"});
  Base("gemma3");
  std::vector<std::string> scores(320, EncodeF32(0));
  scores[9] = EncodeF32(NAN);
  writer_.Set("tokenizer.ggml.scores", GgufType::kArray, EncodeArray(GgufType::kFloat32, scores));
  ExpectRefused({"tokenizer.ggml.scores", "token 9 is not a number"});
}

TEST_F(ChangedFileTest, ByteTokensMustNameAByte) {
  Base("gemma3");
  SetToken(6, "<0xZZ>");
  ExpectRefused({"tokenizer.ggml.tokens", "token 6", "<0x00>"});
}

TEST_F(ChangedFileTest, BosAndEosAreAddedOnceWhereTheFileAsks) {
  Base("llama-f32");
  SetBool("tokenizer.ggml.add_bos_token", true);
  SetBool("tokenizer.ggml.add_eos_token", true);
  const auto tokenizer = Make();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("", {.add_bos = true}), ElementsAre(1, 2));
  EXPECT_THAT((*tokenizer)->Encode("!", {.add_bos = true}), ElementsAre(1, 3, 2));
  EXPECT_THAT(
      (*tokenizer)->Encode("<|im_start|>!<|im_end|>", {.parse_special = true, .add_bos = true}),
      ElementsAre(1, 3, 2));
  EXPECT_THAT((*tokenizer)->Encode("!", {}), ElementsAre(3));
}

TEST_F(ChangedFileTest, Llama3RuleAddsBosUnlessTheFileSaysOtherwise) {
  Base("llama-f32");
  writer_.SetText("tokenizer.ggml.pre", "llama-bpe");
  writer_.Remove("tokenizer.ggml.add_bos_token");
  const auto tokenizer = Make();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_TRUE((*tokenizer)->adds_bos());
}

TEST_F(ChangedFileTest, Llama3RuleTakesWordsThatNoMergeLeadsTo) {
  for (const bool whole : {false, true}) {
    Base("llama-f32");
    if (whole) writer_.SetText("tokenizer.ggml.pre", "llama-bpe");
    writer_.Set("tokenizer.ggml.merges", GgufType::kArray, EncodeStrings({"h e"}));
    const auto tokenizer = Make();
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    ASSERT_TRUE((*tokenizer)->Find("in"));
    EXPECT_EQ((*tokenizer)->Encode("in", {}).size(), whole ? 1u : 2u);
  }
}

TEST_F(ChangedFileTest, UserDefinedTokensAreFoundInEveryTextAndTheLongestWins) {
  Base("llama-f32");
  SetToken(285, "{{x");
  SetToken(286, "{{x}}");
  SetKinds({{0, 3}, {1, 3}, {2, 3}, {285, 4}, {286, 4}});
  writer_.Set("tokenizer.ggml.merges", GgufType::kArray, EncodeStrings({"h e"}));
  const auto tokenizer = Make();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("!{{x}}{{x!", {}), ElementsAre(3, 286, 285, 3));
  EXPECT_EQ((*tokenizer)->Decode({286}, false), "{{x}}");
}

TEST_F(ChangedFileTest, TurnMarkersAreControlTokensWhateverTheFileCallsThem) {
  Base("llama-f32");
  SetKinds({{0, 3}, {1, 4}, {2, 4}});
  const auto tokenizer = Make();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("<|im_end|>", {.parse_special = true}), ElementsAre(2));
  EXPECT_GT((*tokenizer)->Encode("<|im_end|>", {}).size(), 1u);
  EXPECT_THAT((*tokenizer)->end_tokens(), ElementsAre(0, 2));
}

TEST_F(ChangedFileTest, BytesWithoutATokenAreLeftOut) {
  Base("llama-f32");
  SetToken(3, "nothing");  // was "!"
  const auto tokenizer = Make();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Decode((*tokenizer)->Encode("a!b", {}), false), "ab");
}

TEST_F(ChangedFileTest, SpacePrefixIsAddedAndDroppedAgain) {
  Base("gemma3");
  SetBool("tokenizer.ggml.add_space_prefix", true);
  const auto tokenizer = Make();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  Base("gemma3");
  const auto plain = Make();
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ((*tokenizer)->Encode("the cat", {}), (*plain)->Encode(" the cat", {}));
  EXPECT_EQ((*tokenizer)->Decode((*tokenizer)->Encode("the cat", {}), false), "the cat");
  EXPECT_EQ((*tokenizer)->Decode((*tokenizer)->Encode("  the cat", {}), false), "  the cat");
  EXPECT_THAT((*tokenizer)->Encode("", {}), IsEmpty());
}

TEST_F(ChangedFileTest, SentencePieceAddsBosWhereTheFileDoesNotSay) {
  Base("gemma3");
  writer_.Remove("tokenizer.ggml.add_bos_token");
  const auto tokenizer = Make();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_TRUE((*tokenizer)->adds_bos());
}

TEST_F(ChangedFileTest, UnknownCharactersWithoutByteTokensBecomeTheUnknownToken) {
  Base("gemma3");
  std::map<size_t, uint32_t> kinds = {{0, 3}, {1, 3}, {2, 3}, {3, 2}, {4, 3}, {5, 3}};
  for (size_t token = 6; token < 262; ++token) kinds[token] = 5;
  SetKinds(kinds);
  const auto tokenizer = Make();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("\x01", {}), ElementsAre(3));
}

TEST_F(ChangedFileTest, SentencePieceFindsTokensThatHoldASpaceInside) {
  Base("gemma3");
  SetToken(311, "q\xe2\x96\x81");
  const auto tokenizer = Make();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Encode("q z", {}).front(), 311);
}

// No merge may lead to a control token: its text in a prompt would otherwise act as one.
TEST_F(ChangedFileTest, SentencePieceNeverMergesToAControlToken) {
  Base("gemma3");
  constexpr size_t kHe = 292;
  ASSERT_EQ(writer_.Texts("tokenizer.ggml.tokens")[kHe], "he");
  std::map<size_t, uint32_t> kinds = {{0, 3}, {1, 3}, {2, 3}, {3, 2}, {4, 3}, {5, 3}, {kHe, 3}};
  for (size_t token = 6; token < 262; ++token) kinds[token] = 6;
  SetKinds(kinds);
  const auto tokenizer = Make();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Encode("he", {}).size(), 2u);
  EXPECT_THAT((*tokenizer)->Encode("he", {.parse_special = true}),
              ElementsAre(static_cast<TokenId>(kHe)));
}

INSTANTIATE_TEST_SUITE_P(
    Models, DemoTokenizerTest,
    testing::Values(DemoModel{"smollm2-135m", "SmolLM2-135M-Instruct.Q4_1.gguf"},
                    DemoModel{"gemma3-270m", "gemma-3-270m-q4_k_m.gguf"}),
    [](const auto& info) { return std::string(info.param.name).substr(0, 6); });

}  // namespace
}  // namespace condense
