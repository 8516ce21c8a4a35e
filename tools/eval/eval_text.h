#ifndef CONDENSE_TOOLS_EVAL_EVAL_TEXT_H_
#define CONDENSE_TOOLS_EVAL_EVAL_TEXT_H_

// Real text as tokens, and pieces of it.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/tokenizer.h"

namespace condense {

inline constexpr int64_t kMaxEvalTextBytes = int64_t{64} << 20;

// INVALID_ARGUMENT or NOT_FOUND naming the path: not readable, empty, or larger than
// kMaxEvalTextBytes.
absl::StatusOr<std::string> ReadEvalText(const std::string& path);

// Threads: immutable; thread-safe.
class EvalText {
 public:
  EvalText(std::string name, std::string_view text, const Tokenizer& tokenizer);

  const std::string& name() const { return name_; }
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  // Piece `index` of `count`, evenly spread from the first token to the last; pieces overlap where
  // the text is shorter than all of them together.
  // REQUIRES: 0 <= index < count, length <= size().
  std::span<const TokenId> Piece(int64_t index, int64_t count, int64_t length) const;

 private:
  std::string name_;
  std::vector<TokenId> tokens_;
};

// The first place at or after `from` where a sentence or a line begins; `from` if there is none in
// the next 100 tokens.
int64_t SentenceStart(std::span<const TokenId> tokens, int64_t from, const Tokenizer& tokenizer);

}  // namespace condense

#endif  // CONDENSE_TOOLS_EVAL_EVAL_TEXT_H_
