#include "engine/tokenizer/special_tokens.h"

namespace condense {

void SpecialTokens::Add(std::string_view text, TokenId token) {
  if (text.empty()) return;
  begins_[static_cast<unsigned char>(text[0])] = true;
  uint32_t node = 0;
  for (const char byte : text) {
    const auto [edge, added] =
        edges_.emplace(Edge(node, byte), static_cast<uint32_t>(tokens_.size()));
    if (added) tokens_.push_back(-1);
    node = edge->second;
  }
  tokens_[node] = token;
}

SpecialTokens::Match SpecialTokens::Next(std::string_view text, size_t from) const {
  if (empty()) return {};
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<unsigned char>(text[begin])]) continue;
    const Match match = LongestAt(text, begin);
    if (match.size > 0) return match;
  }
  return {};
}

SpecialTokens::Match SpecialTokens::LongestAt(std::string_view text, size_t begin) const {
  Match match;
  uint32_t node = 0;
  for (size_t end = begin; end < text.size(); ++end) {
    const auto edge = edges_.find(Edge(node, text[end]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (tokens_[node] >= 0)
      match = {.begin = begin, .size = end + 1 - begin, .token = tokens_[node]};
  }
  return match;
}

}  // namespace condense
