#include "engine/gguf.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <limits>
#include <string>

#include "tests/support/gguf_writer.h"

namespace condense {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Tiny(const std::string& name) {
  return std::string(CONDENSE_TEST_DATA) + "/tiny/" + name + ".gguf";
}

absl::StatusOr<std::unique_ptr<const GgufFile>> Parse(const std::string& bytes) {
  return GgufFile::Parse(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "made");
}

template <typename T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}

// One key of every type, and two tensors.
GgufWriter EveryType() {
  GgufWriter writer;
  writer.Set("u8", GgufType::kUint8, Raw<uint8_t>(200));
  writer.Set("i8", GgufType::kInt8, Raw<int8_t>(-100));
  writer.Set("u16", GgufType::kUint16, Raw<uint16_t>(60000));
  writer.Set("i16", GgufType::kInt16, Raw<int16_t>(-30000));
  writer.SetU32("u32", 4000000000u);
  writer.Set("i32", GgufType::kInt32, Raw<int32_t>(-2000000000));
  writer.Set("u64", GgufType::kUint64, EncodeU64(std::numeric_limits<uint64_t>::max()));
  writer.Set("i64", GgufType::kInt64, Raw<int64_t>(std::numeric_limits<int64_t>::min()));
  writer.SetF32("f32", 0.5f);
  writer.Set("f64", GgufType::kFloat64, Raw(1e-300));
  writer.Set("yes", GgufType::kBool, Raw<uint8_t>(1));
  writer.SetText("text", "caf\xc3\xa9");
  writer.Set("texts", GgufType::kArray, EncodeStrings({"a", "", "bc"}));
  writer.Set("floats", GgufType::kArray, EncodeArray(GgufType::kFloat32, {Raw(1.5f), Raw(-2.0f)}));
  writer.Set("ints", GgufType::kArray,
             EncodeArray(GgufType::kInt32, {Raw<int32_t>(-1), Raw<int32_t>(7)}));
  writer.AddTensor({"a", {3}, 0, 0, Raw(1.0f) + Raw(2.0f) + Raw(3.0f), {}});
  writer.AddTensor({"b", {32, 2}, 2, 0, std::string(36, 'x'), {}});
  writer.Relayout();
  return writer;
}

TEST(GgufTest, ReadsAValueOfEveryType) {
  const std::string bytes = EveryType().Bytes();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*(*file)->Int("u8", 0, 255), 200);
  EXPECT_EQ(*(*file)->Int("i8", -128, 0), -100);
  EXPECT_EQ(*(*file)->Int("u16", 0, 65535), 60000);
  EXPECT_EQ(*(*file)->Int("i16", -40000, 0), -30000);
  EXPECT_EQ(*(*file)->Int("u32", 0, 1LL << 40), 4000000000);
  EXPECT_EQ(*(*file)->Int("i32", -(1LL << 40), 0), -2000000000);
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(*(*file)->Int("i64", kLeast, 0), kLeast);
  EXPECT_EQ(*(*file)->Float("f32", 0, 1), 0.5);
  EXPECT_EQ(*(*file)->Float("f64", 0, 1), 1e-300);
  EXPECT_TRUE(*(*file)->BoolOr("yes", false));
  EXPECT_EQ(*(*file)->String("text"), "caf\xc3\xa9");
  EXPECT_THAT(**(*file)->Strings("texts"), ElementsAre("a", "", "bc"));
  EXPECT_THAT(*(*file)->Floats("floats"), ElementsAre(1.5f, -2.0f));
  EXPECT_THAT(*(*file)->Ints("ints"), ElementsAre(-1, 7));
}

TEST(GgufTest, ReadsEveryIntegerArrayType) {
  GgufWriter writer;
  writer.Set("u8", GgufType::kArray, EncodeArray(GgufType::kUint8, {Raw<uint8_t>(255)}));
  writer.Set("i8", GgufType::kArray, EncodeArray(GgufType::kInt8, {Raw<int8_t>(-1)}));
  writer.Set("u16", GgufType::kArray, EncodeArray(GgufType::kUint16, {Raw<uint16_t>(65535)}));
  writer.Set("i16", GgufType::kArray, EncodeArray(GgufType::kInt16, {Raw<int16_t>(-2)}));
  writer.Set("u32", GgufType::kArray, EncodeArray(GgufType::kUint32, {Raw<uint32_t>(1u << 31)}));
  writer.Set("i64", GgufType::kArray, EncodeArray(GgufType::kInt64, {Raw<int64_t>(-3)}));
  writer.Set("u64", GgufType::kArray, EncodeArray(GgufType::kUint64, {Raw<uint64_t>(1)}));
  writer.Set("f64", GgufType::kArray, EncodeArray(GgufType::kFloat64, {Raw(0.25)}));
  const std::string bytes = writer.Bytes();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(*(*file)->Ints("u8"), ElementsAre(255));
  EXPECT_THAT(*(*file)->Ints("i8"), ElementsAre(-1));
  EXPECT_THAT(*(*file)->Ints("u16"), ElementsAre(65535));
  EXPECT_THAT(*(*file)->Ints("i16"), ElementsAre(-2));
  EXPECT_THAT(*(*file)->Ints("u32"), ElementsAre(1LL << 31));
  EXPECT_THAT(*(*file)->Ints("i64"), ElementsAre(-3));
  EXPECT_FALSE((*file)->Ints("u64").ok());
  EXPECT_FALSE((*file)->Ints("f64").ok());
  EXPECT_THAT(*(*file)->Floats("f64"), ElementsAre(0.25f));
}

TEST(GgufTest, TensorsPointIntoTheFile) {
  const std::string bytes = EveryType().Bytes();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->tensors().size(), 2u);
  const GgufTensor* b = (*file)->FindTensor("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->type, TensorType::kQ4_0);
  EXPECT_THAT(b->dims, ElementsAre(32, 2));
  EXPECT_EQ(b->size_bytes, 36);
  EXPECT_EQ(reinterpret_cast<const char*>(b->data) + 36 + 28, bytes.data() + bytes.size());
  EXPECT_EQ((*file)->FindTensor("c"), nullptr);
}

TEST(GgufTest, TensorsThatOverlapAreRefused) {
  GgufWriter writer = EveryType();
  writer.tensor("a").dims = {8};  // 32 bytes: as far as "b"
  EXPECT_TRUE(Parse(writer.Bytes()).ok());
  writer.tensor("a").dims = {9};
  const absl::Status status = Parse(writer.Bytes()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensors \"a\" and \"b\" overlap"));
}

TEST(GgufTest, LimitsOfARangeBelongToIt) {
  const std::string bytes = EveryType().Bytes();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->Int("u8", 200, 200).ok());
  EXPECT_TRUE((*file)->Int("i8", -100, -100).ok());
  EXPECT_TRUE((*file)->Float("f32", 0.5, 0.5).ok());
}

TEST(GgufTest, VersionTwoIsRead) {
  GgufWriter writer = EveryType();
  writer.version = 2;
  const std::string bytes = writer.Bytes();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->version(), 2u);
}

TEST(GgufTest, RequiredKeyThatIsAbsentIsNamed) {
  const std::string bytes = EveryType().Bytes();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok());
  const absl::Status status = (*file)->Int("llama.nothing", 0, 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("made: key \"llama.nothing\" is missing"));
}

TEST(GgufTest, OptionalKeyThatIsAbsentGivesTheDefault) {
  const std::string bytes = EveryType().Bytes();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(*(*file)->IntOr("none", 0, 1, 42), 42);
  EXPECT_EQ(*(*file)->FloatOr("none", 0, 1, 0.25), 0.25);
  EXPECT_TRUE(*(*file)->BoolOr("none", true));
  EXPECT_EQ(*(*file)->StringOr("none", "x"), "x");
}

TEST(GgufTest, ValueOfAnotherTypeIsRefusedEvenWhereOptional) {
  const std::string bytes = EveryType().Bytes();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok());
  const absl::Status status = (*file)->IntOr("text", 0, 1, 0).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("key \"text\" must be an integer, is string"));
  EXPECT_FALSE((*file)->Int("yes", 0, 1).ok());
  EXPECT_FALSE((*file)->FloatOr("u32", 0, 1, 0).ok());
  EXPECT_FALSE((*file)->BoolOr("u8", false).ok());
  EXPECT_FALSE((*file)->StringOr("f32", "").ok());
  EXPECT_THAT(std::string((*file)->Strings("ints").status().message()),
              HasSubstr("must be an array of strings, is array of int32"));
  EXPECT_FALSE((*file)->Floats("texts").ok());
  EXPECT_FALSE((*file)->Ints("floats").ok());
}

TEST(GgufTest, ValueOutOfRangeIsNamedWithItsLimits) {
  const std::string bytes = EveryType().Bytes();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_THAT(std::string((*file)->Int("u8", 1, 100).status().message()),
              HasSubstr("key \"u8\": 200 is outside [1, 100]"));
  EXPECT_FALSE((*file)->Int("u64", 0, std::numeric_limits<int64_t>::max()).ok());
  EXPECT_FALSE((*file)->Int("i8", 0, 100).ok());
  EXPECT_FALSE((*file)->Float("f32", 0.6, 1).ok());
}

TEST(GgufTest, NotANumberIsNeverInRange) {
  GgufWriter writer;
  writer.SetF32("nan", std::numeric_limits<float>::quiet_NaN());
  const std::string bytes = writer.Bytes();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE((*file)->Float("nan", -1e300, 1e300).ok());
}

TEST(GgufTest, EveryPrefixOfAFileIsRefused) {
  const std::string bytes = EveryType().Bytes();
  for (size_t size = 0; size < bytes.size() - 28; ++size) {  // the last 28 bytes are padding
    const std::string cut = bytes.substr(0, size);
    const auto file = Parse(cut);
    ASSERT_FALSE(file.ok()) << size;
    ASSERT_EQ(file.status().code(), absl::StatusCode::kDataLoss) << size;
  }
}

TEST(GgufTest, EveryByteMayBeDamagedWithoutHarm) {
  const std::string whole = EveryType().Bytes();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ flip);
      const auto file = Parse(bytes);
      if (file.ok()) continue;
      EXPECT_THAT(std::string(file.status().message()), HasSubstr("made: "));
    }
  }
}

TEST(GgufTest, MessagesEscapeWhatIsNotPrintable) {
  GgufWriter writer;
  writer.SetU32("bad\n\xff", 1);
  const std::string bytes = writer.Bytes();
  const absl::Status status = Parse(bytes).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"bad\\n\\xff\""));
}

TEST(GgufTest, UnknownTensorTypeListsTheKnownOnes) {
  GgufWriter writer = EveryType();
  writer.tensor("b").type = 26;
  const std::string bytes = writer.Bytes();
  const absl::Status status = Parse(bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  for (const char* name : {"\"b\"", "26", "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
                           "Q8_0", "Q4_K", "Q5_K", "Q6_K"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
}

TEST(GgufTest, OpensAFileOfTheDisk) {
  const auto file = GgufFile::Open(Tiny("llama-f32"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->version(), 3u);
  EXPECT_EQ(*(*file)->String("general.architecture"), "llama");
  EXPECT_EQ((*file)->path(), Tiny("llama-f32"));
  EXPECT_EQ((*file)->size_bytes(), 425952);
  EXPECT_NE((*file)->FindTensor("token_embd.weight"), nullptr);
}

TEST(GgufTest, PathsThatCannotBeReadAreToldApart) {
  EXPECT_EQ(GgufFile::Open("/nowhere/model.gguf").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GgufFile::Open(CONDENSE_TEST_DATA).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(GgufTest, NamedPipeIsRefusedWithoutWaiting) {
  const std::string path = testing::TempDir() + "gguf_test_pipe_" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(GgufFile::Open(path).status().code(), absl::StatusCode::kInvalidArgument);
  std::remove(path.c_str());
}

TEST(GgufTest, EmptyFileIsRefused) {
  const std::string path = testing::TempDir() + "gguf_test_empty_" + std::to_string(getpid());
  std::ofstream(path).close();
  const absl::Status status = GgufFile::Open(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the file is empty"));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace condense
