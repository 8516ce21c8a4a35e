#ifndef CONDENSE_ENGINE_TOKENIZER_VOCABULARY_TOKENIZER_H_
#define CONDENSE_ENGINE_TOKENIZER_VOCABULARY_TOKENIZER_H_

// What all tokenizers share: special tokens cut out of the text, BOS and EOS, and the bytes of each
// token.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/special_tokens.h"
#include "engine/tokenizer/string_table.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/vocabulary.h"

namespace condense {

// Threads: immutable after construction; thread-safe.
class VocabularyTokenizer : public Tokenizer {
 public:
  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options) const override;
  std::vector<TokenId> EncodeSegments(const std::vector<TextSegment>& segments,
                                      bool add_bos) const override;
  std::string TokenBytes(TokenId token, bool special) const override;
  std::string Decode(const std::vector<TokenId>& tokens, bool special) const override;
  std::optional<TokenId> Find(std::string_view token_text) const override {
    return vocabulary_.Find(token_text);
  }

 protected:
  // `adds_bos` is what holds where the file does not say. DATA_LOSS for keys of a wrong type.
  absl::Status LoadFlags(const GgufFile& file, bool adds_bos);
  explicit VocabularyTokenizer(Vocabulary vocabulary);

  // Appends the ids of a text in which no special token is. It stands at the beginning or after a
  // special token.
  virtual void EncodePlain(std::string_view text, std::vector<TokenId>* tokens) const = 0;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  // Bytes of each token; filled by the subclass, one Add per token.
  StringTable bytes_;

 private:
  // Appends the ids of a text in which user-defined tokens are still to be found.
  void EncodeUserDefined(std::string_view text, std::vector<TokenId>* tokens) const;
  bool HidesBytes(TokenId token) const;

  Vocabulary vocabulary_;
  SpecialTokens marked_;        // control and unknown: found only where asked for
  SpecialTokens user_defined_;  // found in every text
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_TOKENIZER_VOCABULARY_TOKENIZER_H_
