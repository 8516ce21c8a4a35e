#ifndef CONDENSE_ENGINE_TOKENIZER_PRETOKENIZER_H_
#define CONDENSE_ENGINE_TOKENIZER_PRETOKENIZER_H_

// Cuts text into the words that byte-level BPE never merges across, by the rule that a model file
// names.

#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace condense {

// Threads: immutable after Make; thread-safe.
class Pretokenizer {
 public:
  // `name` is the value of tokenizer.ggml.pre. UNIMPLEMENTED with the list of known names for an
  // unknown one.
  static absl::StatusOr<std::unique_ptr<const Pretokenizer>> Make(std::string_view name);
  ~Pretokenizer();
  Pretokenizer(const Pretokenizer&) = delete;
  Pretokenizer& operator=(const Pretokenizer&) = delete;

  // The words of `text` in order; together they are all of it. A run of bytes that are not UTF-8 is
  // a word of its own. Cost: linear in the length of `text`.
  std::vector<std::string_view> Split(std::string_view text) const;

  // A word that is a token is taken whole, without merging.
  bool takes_whole_words() const { return takes_whole_words_; }
  // Whether BOS is added where the file does not say.
  bool adds_bos() const { return adds_bos_; }

 private:
  class Pattern;
  struct Rule;
  static const std::vector<Rule>& Rules();
  explicit Pretokenizer(const Rule& rule);

  std::vector<std::unique_ptr<const Pattern>>
      patterns_;  // applied in turn, each to the words of the one before
  bool takes_whole_words_ = false;
  bool adds_bos_ = false;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_TOKENIZER_PRETOKENIZER_H_
