#ifndef CONDENSE_TESTS_TOOLS_EVAL_BYTE_TOKENIZER_H_
#define CONDENSE_TESTS_TOOLS_EVAL_BYTE_TOKENIZER_H_

// A tokenizer whose tokens are bytes, with BOS if asked for.

#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace condense {

class ByteTokenizer : public Tokenizer {
 public:
  static constexpr TokenId kBos = 256;

  explicit ByteTokenizer(bool adds_bos = false) {
    vocab_size_ = 257;
    bos_ = kBos;
    adds_bos_ = adds_bos;
  }
  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions&) const override {
    std::vector<TokenId> tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::string TokenBytes(TokenId token, bool) const override {
    return token < kBos ? std::string(1, static_cast<char>(token)) : "";
  }
  std::string Decode(const std::vector<TokenId>& tokens, bool special) const override {
    std::string text;
    for (const TokenId token : tokens) text += TokenBytes(token, special);
    return text;
  }
  std::optional<TokenId> Find(std::string_view) const override { return std::nullopt; }
};

}  // namespace condense

#endif  // CONDENSE_TESTS_TOOLS_EVAL_BYTE_TOKENIZER_H_
