#ifndef CONDENSE_ENGINE_TOKENIZER_VOCABULARY_H_
#define CONDENSE_ENGINE_TOKENIZER_VOCABULARY_H_

// The token table of a model file: texts, kinds and the ids that have a meaning, all checked.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/gguf.h"
#include "engine/tokenizer/string_table.h"
#include "kernels/base/dtype.h"

namespace condense {

// The values of tokenizer.ggml.token_type.
enum class TokenKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// Owns: copies of all texts; the file may go. Threads: immutable after Load; thread-safe.
class Vocabulary {
 public:
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  // DATA_LOSS naming the key, the value and the limit: no tokens, the same text twice, token_type
  // of another length or with an unknown kind, an id that is not below the number of tokens.
  static absl::StatusOr<Vocabulary> Load(const GgufFile& file);

  TokenId size() const { return static_cast<TokenId>(kinds_.size()); }
  // The text as the file has it. REQUIRES: 0 <= token < size().
  std::string_view text(TokenId token) const { return texts_[token]; }
  TokenKind kind(TokenId token) const { return kinds_[token]; }
  std::optional<TokenId> Find(std::string_view text) const;

  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  std::optional<TokenId> unknown() const { return unknown_; }
  // Sorted: eos, eot and eom of the file, and tokens whose text is known to end a turn.
  const std::vector<TokenId>& end_tokens() const { return end_tokens_; }

 private:
  Vocabulary() = default;
  absl::Status LoadTexts(const GgufFile& file);
  absl::Status LoadKinds(const GgufFile& file);
  absl::Status LoadIds(const GgufFile& file);

  StringTable texts_;
  std::vector<TokenKind> kinds_;
  absl::flat_hash_map<std::string_view, TokenId> ids_;  // keys are views into texts_
  std::optional<TokenId> bos_, eos_, unknown_;
  std::vector<TokenId> end_tokens_;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_TOKENIZER_VOCABULARY_H_
