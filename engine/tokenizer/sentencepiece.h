#ifndef CONDENSE_ENGINE_TOKENIZER_SENTENCEPIECE_H_
#define CONDENSE_ENGINE_TOKENIZER_SENTENCEPIECE_H_

// SentencePiece-style encoding (tokenizer.ggml.model "llama"): scores choose the merges, unknown
// characters become byte tokens, spaces are written as U+2581.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "engine/tokenizer/merge.h"
#include "engine/tokenizer/vocabulary_tokenizer.h"

namespace condense {

// Threads: immutable after Make; thread-safe.
class SentencePieceTokenizer final : public VocabularyTokenizer {
 public:
  // DATA_LOSS naming the key and the entry.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Make(const GgufFile& file);

  // Drops the space that Encode puts before the text.
  std::string Decode(const std::vector<TokenId>& tokens, bool special) const override;

 protected:
  void EncodePlain(std::string_view text, std::vector<TokenId>* tokens) const override;

 private:
  explicit SentencePieceTokenizer(Vocabulary vocabulary)
      : VocabularyTokenizer(std::move(vocabulary)) {}
  absl::Status LoadRanks(const GgufFile& file);
  absl::Status LoadBytes(const GgufFile& file);
  void LoadPieces();

  // The next bytes of `text` that can be encoded by themselves: no token reaches across their end.
  std::string_view NextWord(std::string_view text) const;
  void EncodeWord(std::string_view word, std::vector<MergeSymbol>* symbols,
                  std::vector<TokenId>* tokens) const;

  bool adds_space_ = false;
  size_t longest_piece_ = 0;     // bytes
  std::vector<uint32_t> ranks_;  // of each token: 0 for the best score, the same for equal ones
  std::array<TokenId, 256> byte_tokens_;  // -1: none
  absl::flat_hash_map<std::string_view, Merge>
      pieces_;  // what text can be merged to; views into the vocabulary
  absl::flat_hash_set<uint32_t>
      before_space_;  // characters (their bytes) that stand before a space in some token
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_TOKENIZER_SENTENCEPIECE_H_
