#ifndef CONDENSE_ENGINE_TOKENIZER_BPE_H_
#define CONDENSE_ENGINE_TOKENIZER_BPE_H_

// Byte-level byte-pair encoding (tokenizer.ggml.model "gpt2").

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/tokenizer/merge.h"
#include "engine/tokenizer/pretokenizer.h"
#include "engine/tokenizer/vocabulary_tokenizer.h"

namespace condense {

// Decode(Encode(x)) is x for all bytes, but for the bytes that a vocabulary has no token for: those
// are dropped. Threads: immutable after Make; thread-safe.
class BpeTokenizer final : public VocabularyTokenizer {
 public:
  // DATA_LOSS naming the key and the entry; UNIMPLEMENTED for an unknown pre-tokenizer.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Make(const GgufFile& file);

 protected:
  void EncodePlain(std::string_view text, std::vector<TokenId>* tokens) const override;

 private:
  explicit BpeTokenizer(Vocabulary vocabulary) : VocabularyTokenizer(std::move(vocabulary)) {}
  absl::Status LoadMerges(const GgufFile& file);
  void LoadBytes();
  // Fills words_: every token that merging its own bytes gives, or simply every token where the
  // rule says so.
  void FindWholeWords();

  // Both append the ids of one word of the pre-tokenizer. `symbols` is scratch memory.
  void EncodeWord(std::string_view word, std::vector<MergeSymbol>* symbols,
                  std::vector<TokenId>* tokens) const;
  void MergeWord(std::string_view word, std::vector<MergeSymbol>* symbols,
                 std::vector<TokenId>* tokens) const;

  std::unique_ptr<const Pretokenizer> pretokenizer_;
  std::array<TokenId, 256> byte_tokens_{};       // -1: the vocabulary lacks this byte
  absl::flat_hash_map<uint64_t, Merge> merges_;  // by left << 32 | right
  // Words that become one token, found without merging; views into bytes_.
  absl::flat_hash_map<std::string_view, TokenId> words_;
  size_t longest_word_ = 0;  // bytes, of those in words_
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_TOKENIZER_BPE_H_
