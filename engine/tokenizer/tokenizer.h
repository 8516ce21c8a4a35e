#ifndef CONDENSE_ENGINE_TOKENIZER_TOKENIZER_H_
#define CONDENSE_ENGINE_TOKENIZER_TOKENIZER_H_

// Text <-> token ids, from a model file's metadata.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gguf.h"
#include "kernels/base/dtype.h"

namespace condense {

struct EncodeOptions {
  // Read "<|im_end|>" and the like as one token; otherwise as plain text.
  bool parse_special = false;
  bool add_bos = false;  // put BOS (and EOS) where the model file asks for it, never twice
};

// A stretch of a longer text, with its own say in whether special tokens are read in it.
struct TextSegment {
  std::string_view text;
  bool parse_special = false;
};

// Threads: immutable after Make; thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // DATA_LOSS naming the file, the metadata key and what is wrong with it; UNIMPLEMENTED with the
  // list of known names for an unknown tokenizer.ggml.model or tokenizer.ggml.pre.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Make(const GgufFile& file);

  // Any bytes are accepted; bytes that are not UTF-8 become byte tokens. Cost: near-linear in text
  // length.
  virtual std::vector<TokenId> Encode(std::string_view text,
                                      const EncodeOptions& options) const = 0;
  // The ids of all segments read as one text, except that a special token is never found across a
  // segment's edge nor in a segment that does not ask for it. Adds BOS if `add_bos` (unless the
  // text begins with it) and never EOS. Here: each segment by itself; the tokenizers of model files
  // do better.
  virtual std::vector<TokenId> EncodeSegments(const std::vector<TextSegment>& segments,
                                              bool add_bos) const;
  // The bytes of one token, possibly half a character. Control tokens give their text if `special`,
  // else nothing. Ids out of range give nothing.
  virtual std::string TokenBytes(TokenId token, bool special) const = 0;
  // The text of a whole sequence (a tokenizer may drop a leading space that it added).
  virtual std::string Decode(const std::vector<TokenId>& tokens, bool special) const = 0;

  int32_t vocab_size() const { return vocab_size_; }
  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  bool adds_bos() const { return adds_bos_; }
  // Every id that ends a generation: eos, eot, eom of the file and the known end-of-turn tokens.
  // Sorted.
  const std::vector<TokenId>& end_tokens() const { return end_tokens_; }
  // Id of a token by its exact text ("<|im_end|>").
  virtual std::optional<TokenId> Find(std::string_view token_text) const = 0;

 protected:
  int32_t vocab_size_ = 0;
  std::optional<TokenId> bos_, eos_;
  bool adds_bos_ = false;
  bool adds_eos_ = false;
  std::vector<TokenId> end_tokens_;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_TOKENIZER_TOKENIZER_H_
