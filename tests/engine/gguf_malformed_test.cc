// Damaged model files: each must be refused as a whole with a message that names the trouble. Every
// case is a tiny model with one thing changed; it goes through everything that reads a file:
// parser, config, weights, tokenizer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/gguf.h"
#include "engine/model_config.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights.h"
#include "tests/support/gguf_writer.h"

namespace condense {
namespace {

using testing::HasSubstr;

// kEither: refusing and loading are both defensible; a refusal must name the trouble all the same.
enum class Expect { kReject, kEither, kAccept };

struct Case {
  std::string name;
  Expect expect;
  std::vector<std::string> says;                   // what a refusal must mention
  std::function<std::string(GgufWriter&)> change;  // returns the bytes of the file
  std::string base = "llama-f32";
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

constexpr uint64_t kMax64 = std::numeric_limits<uint64_t>::max();
constexpr char kKey[] = "blk.1.attn_k.weight";
constexpr char kNorm[] = "blk.0.attn_norm.weight";

using Edit = std::function<void(GgufWriter&)>;
std::function<std::string(GgufWriter&)> Edited(Edit edit) {
  return [edit = std::move(edit)](GgufWriter& w) {
    edit(w);
    return w.Bytes();
  };
}

Case Key(std::string name, Expect expect, std::string key, GgufType type, std::string value,
         std::vector<std::string> says) {
  if (!key.empty()) says.push_back(key);
  return {std::move(name), expect, std::move(says),
          Edited([key, type, value](GgufWriter& w) { w.Set(key, type, value); })};
}
Case U32(std::string name, Expect expect, std::string key, uint32_t value,
         std::vector<std::string> says) {
  return Key(std::move(name), expect, std::move(key), GgufType::kUint32, EncodeU32(value),
             std::move(says));
}
Case F32(std::string name, std::string key, float value, std::vector<std::string> says) {
  return Key(std::move(name), Expect::kReject, std::move(key), GgufType::kFloat32, EncodeF32(value),
             std::move(says));
}
Case Text(std::string name, Expect expect, std::string key, std::string text,
          std::vector<std::string> says) {
  return Key(std::move(name), expect, std::move(key), GgufType::kString, EncodeString(text),
             std::move(says));
}
Case Drop(std::string name, std::string key) {
  return {std::move(name), Expect::kReject, {key, "missing"}, Edited([key](GgufWriter& w) {
            w.Remove(key);
          })};
}
Case TensorCase(std::string name, std::string tensor,
                std::function<void(GgufWriter::Tensor&)> change, std::vector<std::string> says) {
  says.push_back(tensor);
  return {std::move(name), Expect::kReject, std::move(says),
          Edited([tensor, change](GgufWriter& w) { change(w.tensor(tensor)); })};
}
// Changes a tensor together with its bytes, and lays the data out again.
Case ResizedCase(std::string name, std::string tensor,
                 std::function<void(GgufWriter::Tensor&)> change, std::vector<std::string> says) {
  says.push_back(tensor);
  return {std::move(name), Expect::kReject, std::move(says),
          Edited([tensor, change](GgufWriter& w) {
            change(w.tensor(tensor));
            w.Relayout();
          })};
}
Case ValueCase(std::string name, std::string tensor, std::string bytes, std::string base) {
  return {std::move(name),
          Expect::kEither,
          {tensor, "not finite"},
          Edited([tensor, bytes](GgufWriter& w) { w.Overwrite(tensor, bytes); }),
          std::move(base)};
}

std::vector<Case> Controls() {
  return {
      {"ok_rebuilt", Expect::kAccept, {}, [](GgufWriter& w) { return w.Bytes(); }},
      {"ok_trailing_bytes",
       Expect::kAccept,
       {},
       [](GgufWriter& w) { return w.Bytes() + std::string(1000, '\0'); }},
      {"ok_alignment_64", Expect::kAccept, {}, Edited([](GgufWriter& w) {
         w.SetU32("general.alignment", 64);
         w.alignment = 64;
         w.Relayout();
       })},
      Key("ok_unknown_key", Expect::kAccept, "tiny.flags", GgufType::kArray,
          EncodeArray(GgufType::kBool, {std::string("\1"), std::string(1, '\0')}), {}),
  };
}

std::vector<Case> HeaderCases() {
  const auto reject = [](std::string name, std::vector<std::string> says, Edit edit) {
    return Case{std::move(name), Expect::kReject, std::move(says), Edited(std::move(edit))};
  };
  return {
      {"empty_file", Expect::kReject, {"empty"}, [](GgufWriter&) { return std::string(); }},
      {"header_truncated",
       Expect::kReject,
       {"ends inside the header"},
       [](GgufWriter& w) { return w.Bytes().substr(0, 10); }},
      reject("magic_wrong", {"not a GGUF file", "\"GGML\""},
             [](GgufWriter& w) { w.magic = "GGML"; }),
      reject("version_99", {"version 99"}, [](GgufWriter& w) { w.version = 99; }),
      reject("version_0", {"version 0"}, [](GgufWriter& w) { w.version = 0; }),
      reject("version_big_endian", {"big-endian"}, [](GgufWriter& w) { w.version = 0x03000000; }),
      reject("kv_count_huge", {"1152921504606846976 key-value pairs"},
             [](GgufWriter& w) { w.num_pairs = uint64_t{1} << 60; }),
      reject("kv_count_minus_1", {"18446744073709551615 key-value pairs"},
             [](GgufWriter& w) { w.num_pairs = kMax64; }),
      reject("tensor_count_huge", {"1152921504606846976 tensors"},
             [](GgufWriter& w) { w.num_tensors = uint64_t{1} << 60; }),
      reject("kv_count_one_short", {"tensor", "dimension"},
             [](GgufWriter& w) { w.num_pairs = w.pairs.size() - 1; }),
  };
}

std::vector<Case> ArrayCases() {
  std::string nested;
  for (int i = 0; i < 100000; ++i) nested += EncodeU32(9) + EncodeU64(1);
  nested += EncodeU32(0) + EncodeU64(0);
  constexpr auto kReject = Expect::kReject;
  constexpr auto kArray = GgufType::kArray;
  return {
      Key("array_length_huge", kReject, "tiny.a", kArray,
          EncodeU32(4) + EncodeU64(uint64_t{1} << 40), {"1099511627776 uint32"}),
      Key("array_length_wraps", kReject, "tiny.a", kArray,
          EncodeU32(4) + EncodeU64(uint64_t{1} << 62), {"4611686018427387904 uint32"}),
      Key("string_array_length_huge", kReject, "tokenizer.ggml.tokens", kArray,
          EncodeU32(8) + EncodeU64(uint64_t{1} << 40) + EncodeString("a"),
          {"1099511627776 string"}),
      Key("array_nested_deep", kReject, "tiny.a", kArray, nested,
          {"nested arrays are not supported"}),
      Key("array_type_unknown", kReject, "tiny.a", kArray,
          EncodeU32(77) + EncodeU64(3) + std::string(12, '\0'), {"element type 77"}),
  };
}

std::vector<Case> MetadataCases() {
  constexpr auto kReject = Expect::kReject, kEither = Expect::kEither;
  return {
      {"kv_truncated",
       kReject,
       {"tokenizer.ggml.tokens"},
       [](GgufWriter& w) {
         return w.Bytes().substr(0, w.KeyPosition("tokenizer.ggml.tokens") + 300);
       }},
      {"key_length_huge",
       kReject,
       {"9223372036854775808"},
       [](GgufWriter& w) { return w.Bytes().replace(24, 8, EncodeU64(uint64_t{1} << 63)); }},
      Key("string_length_huge", kReject, "general.name", GgufType::kString,
          EncodeU64(uint64_t{1} << 40) + "x", {"1099511627776 bytes"}),
      Key("string_length_minus_1", kReject, "general.name", GgufType::kString,
          EncodeU64(kMax64) + "x", {"18446744073709551615 bytes"}),
      {"kv_type_unknown", kReject, {"tiny.a", "type 77"}, Edited([](GgufWriter& w) {
         w.Set("tiny.a", 77u, EncodeU32(0));
       })},
      Key("bool_not_0_or_1", kEither, "tokenizer.ggml.add_bos_token", GgufType::kBool, "\7", {"7"}),
      {"key_not_utf8", kEither, {"tiny.\\xff\\xfe"}, Edited([](GgufWriter& w) {
         w.SetU32("tiny.\xff\xfe", 1);
       })},
      U32("key_empty", kEither, "", 1, {"key", "empty"}),
      {"key_duplicate", kReject, {"llama.block_count", "twice"}, Edited([](GgufWriter& w) {
         w.pairs.push_back({"llama.block_count", 4, EncodeU32(3)});
       })},
      Drop("architecture_missing", "general.architecture"),
      U32("architecture_wrong_type", kReject, "general.architecture", 5, {"a string", "uint32"}),
      Text("architecture_unknown", kReject, "general.architecture", "foonet", {"foonet", "llama"}),
      U32("alignment_0", kReject, "general.alignment", 0, {"power of two"}),
      U32("alignment_not_power_of_2", kReject, "general.alignment", 48, {"48", "power of two"}),
      U32("alignment_huge", kReject, "general.alignment", 1u << 31, {"2147483648"}),
      Text("alignment_wrong_type", kReject, "general.alignment", "32", {"uint32", "string"}),
  };
}

std::vector<Case> SizeCases() {
  constexpr auto kReject = Expect::kReject;
  const std::string heads = "llama.attention.head_count",
                    kv_heads = "llama.attention.head_count_kv";
  return {
      Drop("block_count_missing", "llama.block_count"),
      U32("block_count_0", kReject, "llama.block_count", 0, {"0 is outside [1,"}),
      U32("block_count_huge", kReject, "llama.block_count", 1u << 31, {"2147483648"}),
      Text("block_count_wrong_type", kReject, "llama.block_count", "2", {"an integer", "string"}),
      {"embedding_length_wrong",
       kReject,
       {"token_embd.weight", "64", "128"},
       Edited([](GgufWriter& w) { w.SetU32("llama.embedding_length", 128); })},
      U32("embedding_length_0", kReject, "llama.embedding_length", 0, {"0 is outside [1,"}),
      U32("head_count_0", kReject, heads, 0, {"0 is outside [1,"}),
      {"head_count_not_dividing", kReject, {heads, "5"}, Edited([heads](GgufWriter& w) {
         w.SetU32(heads, 5);
         w.Remove("llama.attention.key_length");
         w.Remove("llama.attention.value_length");
       })},
      U32("head_count_kv_not_dividing", kReject, kv_heads, 3, {"3", "4"}),
      U32("head_count_kv_0", kReject, kv_heads, 0, {"0 is outside [1,"}),
      U32("head_count_kv_above_head_count", kReject, kv_heads, 8, {"8", "4"}),
      U32("head_dim_odd", kReject, "llama.attention.key_length", 31, {"31"}),
      U32("head_dim_wraps", kReject, "llama.attention.key_length", 1u << 31, {"2147483648"}),
      U32("context_length_0", Expect::kEither, "llama.context_length", 0, {"0 is outside [1,"}),
      U32("context_length_huge", Expect::kEither, "llama.context_length", 0xffffffff,
          {"4294967295"}),
  };
}

std::vector<Case> NumberCases() {
  const std::string base = "llama.rope.freq_base",
                    epsilon = "llama.attention.layer_norm_rms_epsilon";
  const std::string type = "llama.rope.scaling.type", factor = "llama.rope.scaling.factor";
  const auto scaling = [=](std::string name, float value) {
    return [=](GgufWriter& w) {
      w.SetText(type, name);
      w.SetF32(factor, value);
    };
  };
  return {
      U32("rope_dimension_above_head", Expect::kReject, "llama.rope.dimension_count", 64,
          {"64", "32"}),
      F32("rope_freq_base_0", base, 0.0f, {"0 is outside"}),
      F32("rope_freq_base_nan", base, NAN, {"nan is outside"}),
      F32("rope_freq_base_negative", base, -10000.0f, {"-10000 is outside"}),
      {"rope_scaling_unknown",
       Expect::kReject,
       {type, "sideways"},
       Edited(scaling("sideways", 2.0f))},
      {"rope_scaling_factor_0", Expect::kEither, {factor}, Edited(scaling("linear", 0.0f))},
      {"rope_freqs_zero",
       Expect::kReject,
       {"rope_freqs.weight", "element 0 is 0"},
       Edited([](GgufWriter& w) { w.Overwrite("rope_freqs.weight", EncodeF32(0.0f)); }),
       "llama-rope-llama3"},
      F32("rms_eps_nan", epsilon, NAN, {"nan is outside"}),
      Drop("rms_eps_missing", epsilon),
  };
}

std::vector<Case> PlaceCases() {
  constexpr auto kReject = Expect::kReject;
  const auto offset = [](std::string name, std::function<uint64_t(GgufWriter&)> to,
                         std::vector<std::string> says, Expect expect = Expect::kReject) {
    says.push_back(kKey);
    return Case{std::move(name), expect, std::move(says),
                Edited([to](GgufWriter& w) { w.tensor(kKey).offset = to(w); })};
  };
  return {
      {"tensor_info_truncated",
       kReject,
       {"ends inside", "tensor"},
       [](GgufWriter& w) { return w.Bytes().substr(0, w.TensorListPosition() + 500); }},
      {"data_missing", kReject, {"tensor data begins"}, [](GgufWriter& w) { return w.Head(); }},
      {"data_truncated",
       kReject,
       {"tensor", "beyond the end"},
       [](GgufWriter& w) { return w.Bytes().substr(0, w.Bytes().size() - 5000); }},
      {"data_truncated_1",
       kReject,
       {"tensor", "beyond the end"},
       [](GgufWriter& w) { return w.Bytes().substr(0, w.Bytes().size() - 1); }},
      offset("offset_beyond_file", [](GgufWriter&) { return uint64_t{1} << 40; },
             {"1099511627776"}),
      offset("offset_wraps", [](GgufWriter&) { return kMax64 - 4095; }, {"18446744073709547520"}),
      offset("offset_wraps_with_size", [](GgufWriter&) { return kMax64 - 31; }, {"beyond the end"}),
      offset("offset_unaligned", [](GgufWriter& w) { return w.tensor(kKey).offset + 4; },
             {"multiple of the alignment 32"}),
      offset(
          "offsets_overlap", [](GgufWriter& w) { return w.tensor("blk.1.attn_v.weight").offset; },
          {"overlap"}, Expect::kEither),
  };
}

std::vector<Case> PresenceCases() {
  const auto without = [](std::string name, std::string tensor) {
    return Case{
        std::move(name), Expect::kReject, {tensor, "missing"}, Edited([tensor](GgufWriter& w) {
          w.RemoveTensor(tensor);
          w.Relayout();
        })};
  };
  const auto with = [](std::string name, std::string tensor, std::string says) {
    return Case{std::move(name), Expect::kEither, {says}, Edited([tensor](GgufWriter& w) {
                  w.AddTensor({tensor, {8}, 0, 0, std::string(32, '\0'), {}});
                  w.Relayout();
                })};
  };
  return {
      {"tensor_duplicate",
       Expect::kReject,
       {"blk.0.attn_q.weight", "twice"},
       Edited([](GgufWriter& w) {
         w.AddTensor(w.tensor("blk.0.attn_q.weight"));
         w.Relayout();
       })},
      without("tensor_missing", "blk.1.ffn_up.weight"),
      without("token_embd_missing", "token_embd.weight"),
      with("tensor_name_unknown", "blk.0.mystery.weight", "blk.0.mystery.weight"),
      with("tensor_name_long", std::string(1000, 'n'), "a name of 1000 bytes"),
  };
}

std::vector<Case> ShapeCases() {
  using Tensor = GgufWriter::Tensor;
  const auto dims = [](std::vector<uint64_t> dims) { return [dims](Tensor& t) { t.dims = dims; }; };
  return {
      TensorCase("shape_transposed", "blk.0.ffn_up.weight", dims({96, 64}),
                 {"[96, 64]", "[64, 96]"}),
      ResizedCase("shape_short_norm", kNorm,
                  [](Tensor& t) {
                    t.dims = {32};
                    t.bytes.resize(128);
                  },
                  {"[32]", "[64]"}),
      ResizedCase("shape_vocab", "token_embd.weight",
                  [](Tensor& t) {
                    t.dims = {64, 287};
                    t.bytes.resize(64 * 287 * 4);
                  },
                  {"287", "288"}),
      TensorCase("shape_extra_dim", kNorm, dims({8, 8}), {"[8, 8]", "[64]"}),
      TensorCase("dims_0", kNorm, dims({}), {"0 dimensions"}),
      TensorCase("dims_5", kNorm, dims({64, 1, 1, 1, 1}), {"5 dimensions", "4"}),
      TensorCase("dims_huge", kNorm, [](Tensor& t) { t.num_dims = 0xffffffff; },
                 {"4294967295 dimensions"}),
      ResizedCase("dim_zero", kNorm,
                  [](Tensor& t) {
                    t.dims = {0};
                    t.bytes.clear();
                  },
                  {"a dimension of 0"}),
      TensorCase("dim_negative", kKey, dims({kMax64 - 63, 64}), {"18446744073709551552"}),
      TensorCase("dims_product_wraps", kKey, dims({uint64_t{1} << 33, uint64_t{1} << 33}),
                 {"8589934592"}),
      TensorCase("dims_bytes_wrap", kKey, dims({uint64_t{1} << 31, uint64_t{1} << 31}),
                 {"2147483648"}),
  };
}

std::vector<Case> TypeCases() {
  using Tensor = GgufWriter::Tensor;
  const auto type = [](uint32_t type) { return [type](Tensor& t) { t.type = type; }; };
  return {
      TensorCase("type_unknown", kKey, type(9999), {"tensor type 9999", "Q4_K"}),
      TensorCase("type_removed", kKey, type(4), {"tensor type 4"}),
      TensorCase("type_block_misfit", kKey, type(12), {"Q4_K", "256", "64"}),
      TensorCase("type_integer", kKey, type(26), {"tensor type 26"}),
      ValueCase("weight_nan", kNorm, EncodeF32(NAN), "llama-f32"),
      ValueCase("weight_inf", "blk.0.ffn_down.weight", EncodeF32(INFINITY), "llama-f32"),
      ValueCase("scale_nan", "blk.0.attn_q.weight", std::string("\x00\x7e", 2), "llama-q8_0"),
      ValueCase("scale_inf", "blk.0.attn_q.weight", std::string("\x00\x7c", 2), "llama-q8_0"),
  };
}

// Replaces the token list, and what must agree with its length.
void SetTokens(GgufWriter& w, const std::vector<std::string>& tokens) {
  w.Set("tokenizer.ggml.tokens", GgufType::kArray, EncodeStrings(tokens));
  w.SetU32("llama.vocab_size", static_cast<uint32_t>(tokens.size()));
  std::vector<std::string> kinds(tokens.size(), EncodeU32(1));
  std::fill_n(kinds.begin(), 3, EncodeU32(3));
  w.Set("tokenizer.ggml.token_type", GgufType::kArray, EncodeArray(GgufType::kInt32, kinds));
}

std::vector<Case> TokenCases() {
  constexpr auto kReject = Expect::kReject, kEither = Expect::kEither;
  constexpr auto kArray = GgufType::kArray;
  const std::string tokens = "tokenizer.ggml.tokens", merges = "tokenizer.ggml.merges";
  const auto changed_token = [tokens](auto change) {
    return Edited([=](GgufWriter& w) {
      std::vector<std::string> texts = w.Texts(tokens);
      texts[100] = change(texts);
      w.Set(tokens, kArray, EncodeStrings(texts));
    });
  };
  std::vector<std::string> numbers;
  for (uint32_t i = 0; i < 288; ++i) numbers.push_back(EncodeU32(i));
  return {
      Drop("tokens_missing", tokens),
      Key("tokens_wrong_type", kReject, tokens, kArray, EncodeArray(GgufType::kUint32, numbers),
          {"an array of strings", "uint32"}),
      Key("tokens_empty", kReject, tokens, kArray, EncodeStrings({}), {"0 tokens"}),
      {"tokens_too_few", kEither, {"280", "288"}, Edited([=](GgufWriter& w) {
         std::vector<std::string> texts = w.Texts(tokens), rules = w.Texts(merges);
         texts.resize(280);
         rules.resize(21);
         SetTokens(w, texts);
         w.Set(merges, kArray, EncodeStrings(rules));
       })},
      {"tokens_too_many", kReject, {"400", "288"}, Edited([=](GgufWriter& w) {
         std::vector<std::string> texts = w.Texts(tokens);
         for (int i = 0; i < 112; ++i) texts.push_back(absl::StrCat("x", i));
         SetTokens(w, texts);
       })},
      Key("token_type_short", kReject, "tokenizer.ggml.token_type", kArray,
          EncodeArray(GgufType::kInt32, std::vector<std::string>(10, EncodeU32(1))), {"10", "288"}),
      U32("vocab_size_mismatch", kEither, "llama.vocab_size", 1000, {"1000", "288"}),
      {"tokens_duplicate",
       kEither,
       {tokens, "100", "50"},
       changed_token([](const std::vector<std::string>& texts) { return texts[50]; })},
      {"token_not_utf8",
       kEither,
       {tokens, "100"},
       changed_token([](const std::vector<std::string>&) { return std::string("\xff\xfe"); })},
  };
}

std::vector<Case> TokenizerCases() {
  constexpr auto kReject = Expect::kReject, kEither = Expect::kEither;
  constexpr auto kArray = GgufType::kArray;
  const std::string merges = "tokenizer.ggml.merges";
  return {
      Drop("tokenizer_missing", "tokenizer.ggml.model"),
      Text("tokenizer_unknown", kReject, "tokenizer.ggml.model", "wordle", {"wordle"}),
      U32("eos_out_of_range", kEither, "tokenizer.ggml.eos_token_id", 1000000, {"1000000", "288"}),
      U32("bos_minus_1", kEither, "tokenizer.ggml.bos_token_id", 0xffffffff, {"4294967295"}),
      Drop("merges_missing", merges),
      Key("merges_wrong_type", kReject, merges, kArray,
          EncodeArray(GgufType::kInt32, std::vector<std::string>(4, EncodeU32(1))),
          {"an array of strings"}),
      Key("merges_unknown_tokens", kEither, merges, kArray,
          EncodeStrings({"q z", "foo bar", "\xc4\xa0 t"}), {}),
      Key("merges_without_space", kEither, merges, kArray, EncodeStrings({"abc", "", " "}), {}),
      Text("chat_template_broken", kEither, "tokenizer.chat_template", "{% for %}{{ x", {}),
  };
}

std::vector<Case> AllCases() {
  std::vector<Case> all;
  for (const auto& part :
       {Controls, HeaderCases, ArrayCases, MetadataCases, SizeCases, NumberCases, PlaceCases,
        PresenceCases, ShapeCases, TypeCases, TokenCases, TokenizerCases}) {
    for (Case& c : part()) all.push_back(std::move(c));
  }
  return all;
}

absl::Status LoadEverything(const std::vector<char>& bytes) {
  const auto file =
      GgufFile::Parse(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "bad.gguf");
  if (!file.ok()) return file.status();
  const auto config = ReadModelConfig(**file);
  if (!config.ok()) return config.status();
  const auto backend = MakeBackend({.kind = "cpu", .num_threads = 1});
  if (!backend.ok()) return backend.status();
  const auto weights = Weights::Load(backend->get(), **file, *config);
  if (!weights.ok()) return weights.status();
  return Tokenizer::Make(**file).status();
}

class GgufMalformedTest : public testing::TestWithParam<Case> {};

TEST_P(GgufMalformedTest, IsRefusedByNameOrLoaded) {
  const Case& c = GetParam();
  GgufWriter writer =
      GgufWriter::FromFile(std::string(CONDENSE_TEST_DATA) + "/tiny/" + c.base + ".gguf");
  const std::string bytes = c.change(writer);
  // A heap block of exactly the file's size, so that a sanitizer sees any step outside it.
  const std::vector<char> exact(bytes.begin(), bytes.end());
  const absl::Status status = LoadEverything(exact);
  if (status.ok()) {
    EXPECT_NE(c.expect, Expect::kReject);
    return;
  }
  ASSERT_NE(c.expect, Expect::kAccept) << status;
  const bool code_fits = status.code() == absl::StatusCode::kDataLoss ||
                         status.code() == absl::StatusCode::kUnimplemented ||
                         status.code() == absl::StatusCode::kInvalidArgument;
  EXPECT_TRUE(code_fits) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("bad.gguf"));
  for (const std::string& text : c.says)
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

INSTANTIATE_TEST_SUITE_P(Files, GgufMalformedTest, testing::ValuesIn(AllCases()),
                         [](const auto& info) { return info.param.name; });

TEST(GgufMalformedTableTest, RebuiltFileEqualsTheOriginal) {
  const std::string path = std::string(CONDENSE_TEST_DATA) + "/tiny/llama-f32.gguf";
  std::ifstream file(path, std::ios::binary);
  const std::string original{std::istreambuf_iterator<char>(file),
                             std::istreambuf_iterator<char>()};
  EXPECT_TRUE(GgufWriter::FromFile(path).Bytes() == original);
}

}  // namespace
}  // namespace condense
