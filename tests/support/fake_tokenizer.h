#ifndef CONDENSE_TESTS_SUPPORT_FAKE_TOKENIZER_H_
#define CONDENSE_TESTS_SUPPORT_FAKE_TOKENIZER_H_

// A tokenizer whose token i is the i-th letter: for tests of what lies around a tokenizer.

#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace condense {

class FakeTokenizer : public Tokenizer {
 public:
  FakeTokenizer() {
    vocab_size_ = 26;
    end_tokens_ = {25};
  }
  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions&) const override {
    std::vector<TokenId> tokens;
    for (const char c : text) tokens.push_back(c - 'a');
    return tokens;
  }
  std::string TokenBytes(TokenId token, bool) const override {
    return std::string(1, static_cast<char>('a' + token));
  }
  std::string Decode(const std::vector<TokenId>& tokens, bool special) const override {
    std::string text;
    for (const TokenId token : tokens) text += TokenBytes(token, special);
    return text;
  }
  std::optional<TokenId> Find(std::string_view) const override { return std::nullopt; }
};

}  // namespace condense

#endif  // CONDENSE_TESTS_SUPPORT_FAKE_TOKENIZER_H_
