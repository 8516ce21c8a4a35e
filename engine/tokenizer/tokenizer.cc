#include "engine/tokenizer/tokenizer.h"

#include "absl/strings/str_format.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/sentencepiece.h"
#include "kernels/base/status_macros.h"

namespace condense {

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::Make(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::string model, file.String("tokenizer.ggml.model"));
  if (model == "gpt2") return BpeTokenizer::Make(file);
  if (model == "llama") return SentencePieceTokenizer::Make(file);
  return absl::UnimplementedError(absl::StrFormat(
      "%s: tokenizer.ggml.model '%s' is not known; known are: gpt2, llama", file.path(), model));
}

std::vector<TokenId> Tokenizer::EncodeSegments(const std::vector<TextSegment>& segments,
                                               bool add_bos) const {
  std::vector<TokenId> tokens;
  for (const TextSegment& segment : segments) {
    const std::vector<TokenId> more =
        Encode(segment.text, {.parse_special = segment.parse_special});
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  if (add_bos && bos_ && (tokens.empty() || tokens.front() != *bos_))
    tokens.insert(tokens.begin(), *bos_);
  return tokens;
}

}  // namespace condense
