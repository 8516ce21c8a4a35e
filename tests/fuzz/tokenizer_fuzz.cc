// Any bytes through the tokenizers of the tiny models: no crash, no id out of range, and the bytes
// come back.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_replace.h"
#include "engine/gguf.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/base/check.h"
#include "tests/support/gguf_writer.h"

namespace condense {
namespace {

struct Subject {
  std::unique_ptr<const Tokenizer> tokenizer;
  bool escapes_space = false;  // U+2581 in a text means a space
  bool adds_space = false;
};

std::unique_ptr<const Tokenizer> MakeFrom(const GgufWriter& writer) {
  const std::string bytes = writer.Bytes();
  const auto file =
      GgufFile::Parse(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "tiny");
  CHECK(file.ok());
  auto tokenizer = Tokenizer::Make(**file);
  CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

std::vector<Subject> MakeSubjects() {
  std::vector<Subject> subjects;
  GgufWriter bpe = GgufWriter::FromFile(CONDENSE_TEST_DATA "/tiny/llama-f32.gguf");
  for (const char* rule : {"smollm", "gpt-2", "llama-bpe", "qwen2", "default"}) {
    bpe.SetText("tokenizer.ggml.pre", rule);
    subjects.push_back({.tokenizer = MakeFrom(bpe)});
  }
  GgufWriter pieces = GgufWriter::FromFile(CONDENSE_TEST_DATA "/tiny/gemma3.gguf");
  for (const bool adds_space : {false, true}) {
    pieces.Set("tokenizer.ggml.add_space_prefix", GgufType::kBool,
               std::string(1, static_cast<char>(adds_space)));
    subjects.push_back(
        {.tokenizer = MakeFrom(pieces), .escapes_space = true, .adds_space = adds_space});
  }
  return subjects;
}

std::string Expected(std::string_view text, const Subject& subject) {
  const std::string bytes(text);
  return subject.escapes_space ? absl::StrReplaceAll(bytes, {{"\xe2\x96\x81", " "}}) : bytes;
}

void Try(const Subject& subject, std::string_view text) {
  const Tokenizer& tokenizer = *subject.tokenizer;
  const std::string expected = Expected(text, subject);
  const std::vector<TokenId> plain = tokenizer.Encode(text, {});
  CHECK(tokenizer.Decode(plain, false) == expected);
  std::string pieces;
  for (const TokenId token : plain) pieces += tokenizer.TokenBytes(token, false);
  CHECK(pieces == (subject.adds_space && !text.empty() ? " " : "") + expected);

  const std::string_view left = text.substr(0, text.size() / 2);
  CHECK(tokenizer.EncodeSegments({{left, false}, {text.substr(left.size()), false}}, false) ==
        plain);

  const std::vector<TokenId> special =
      tokenizer.Encode(text, {.parse_special = true, .add_bos = true});
  for (const TokenId token : special) CHECK(token >= 0 && token < tokenizer.vocab_size());
  if (!subject.escapes_space) CHECK(tokenizer.Decode(special, true) == expected);
}

}  // namespace
}  // namespace condense

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto& subjects = *new std::vector<condense::Subject>(condense::MakeSubjects());
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  condense::Try(subjects[data[0] % subjects.size()], text);
  return 0;
}
