#include "engine/tokenizer/vocabulary_tokenizer.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace condense {

VocabularyTokenizer::VocabularyTokenizer(Vocabulary vocabulary)
    : vocabulary_(std::move(vocabulary)) {
  vocab_size_ = vocabulary_.size();
  bos_ = vocabulary_.bos();
  eos_ = vocabulary_.eos();
  end_tokens_ = vocabulary_.end_tokens();
  for (TokenId token = 0; token < vocab_size_; ++token) {
    const TokenKind kind = vocabulary_.kind(token);
    if (kind == TokenKind::kControl || kind == TokenKind::kUnknown)
      marked_.Add(vocabulary_.text(token), token);
    if (kind == TokenKind::kUserDefined) user_defined_.Add(vocabulary_.text(token), token);
  }
}

absl::Status VocabularyTokenizer::LoadFlags(const GgufFile& file, bool adds_bos) {
  ASSIGN_OR_RETURN(adds_bos_, file.BoolOr("tokenizer.ggml.add_bos_token", adds_bos));
  ASSIGN_OR_RETURN(adds_eos_, file.BoolOr("tokenizer.ggml.add_eos_token", false));
  adds_bos_ = adds_bos_ && bos_.has_value();
  adds_eos_ = adds_eos_ && eos_.has_value();
  return absl::OkStatus();
}

std::vector<TokenId> VocabularyTokenizer::Encode(std::string_view text,
                                                 const EncodeOptions& options) const {
  std::vector<TokenId> tokens = EncodeSegments(
      {{.text = text, .parse_special = options.parse_special}}, options.add_bos && adds_bos_);
  const bool add_eos = options.add_bos && adds_eos_;
  if (add_eos && (tokens.empty() || tokens.back() != *eos_)) tokens.push_back(*eos_);
  return tokens;
}

std::vector<TokenId> VocabularyTokenizer::EncodeSegments(const std::vector<TextSegment>& segments,
                                                         bool add_bos) const {
  std::vector<TokenId> tokens;
  std::string joined;      // of several segments, up to the next special token
  std::string_view plain;  // what is to be encoded next: part of one segment, or all of `joined`
  const auto append = [&](std::string_view text) {
    if (text.empty()) return;
    if (plain.empty()) {
      plain = text;
      return;
    }
    if (plain.data() != joined.data()) joined.assign(plain);
    joined.append(text);
    plain = joined;
  };
  const auto flush = [&] {
    EncodeUserDefined(plain, &tokens);
    plain = {};
    joined.clear();
  };
  for (const TextSegment& segment : segments) {
    size_t begin = 0;
    while (segment.parse_special) {
      const SpecialTokens::Match match = marked_.Next(segment.text, begin);
      if (match.size == 0) break;
      append(segment.text.substr(begin, match.begin - begin));
      flush();
      tokens.push_back(match.token);
      begin = match.begin + match.size;
    }
    append(segment.text.substr(begin));
  }
  flush();
  if (add_bos && bos_ && (tokens.empty() || tokens.front() != *bos_))
    tokens.insert(tokens.begin(), *bos_);
  return tokens;
}

void VocabularyTokenizer::EncodeUserDefined(std::string_view text,
                                            std::vector<TokenId>* tokens) const {
  size_t begin = 0;
  while (begin < text.size()) {
    const SpecialTokens::Match match = user_defined_.Next(text, begin);
    const size_t end = match.size == 0 ? text.size() : match.begin;
    if (end > begin) EncodePlain(text.substr(begin, end - begin), tokens);
    if (match.size == 0) return;
    tokens->push_back(match.token);
    begin = end + match.size;
  }
}

bool VocabularyTokenizer::HidesBytes(TokenId token) const {
  const TokenKind kind = vocabulary_.kind(token);
  return kind == TokenKind::kControl || kind == TokenKind::kUnknown || kind == TokenKind::kUnused;
}

std::string VocabularyTokenizer::TokenBytes(TokenId token, bool special) const {
  if (token < 0 || token >= vocab_size_) return {};
  if (!special && HidesBytes(token)) return {};
  return std::string(bytes_[token]);
}

std::string VocabularyTokenizer::Decode(const std::vector<TokenId>& tokens, bool special) const {
  std::string text;
  for (const TokenId token : tokens) {
    if (token < 0 || token >= vocab_size_ || (!special && HidesBytes(token))) continue;
    text.append(bytes_[token]);
  }
  return text;
}

}  // namespace condense
