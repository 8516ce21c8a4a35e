#ifndef CONDENSE_ENGINE_TOKENIZER_SPECIAL_TOKENS_H_
#define CONDENSE_ENGINE_TOKENIZER_SPECIAL_TOKENS_H_

// Finds tokens that are matched as whole texts, before any merging.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/base/dtype.h"

namespace condense {

// A trie of texts. Threads: immutable once filled; thread-safe.
class SpecialTokens {
 public:
  struct Match {
    size_t begin = 0;
    size_t size = 0;  // 0: none found
    TokenId token = -1;
  };

  // Ignores an empty text.
  void Add(std::string_view text, TokenId token);
  bool empty() const { return tokens_.size() == 1; }
  // The first match at or after `from`, the longest of those that begin there.
  // Cost: text length times the length of the longest common beginning.
  Match Next(std::string_view text, size_t from) const;

 private:
  Match LongestAt(std::string_view text, size_t begin) const;
  static uint64_t Edge(uint32_t node, char byte) {
    return uint64_t{node} << 8 | static_cast<unsigned char>(byte);
  }

  std::array<bool, 256> begins_{};      // bytes that some text begins with
  std::vector<TokenId> tokens_ = {-1};  // of each node; -1: no text ends here
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_TOKENIZER_SPECIAL_TOKENS_H_
