#include "engine/tokenizer/sentencepiece.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/utf8.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

constexpr std::string_view kScoresKey = "tokenizer.ggml.scores";
constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581

void AppendEscaped(std::string_view text, std::string* escaped) {
  for (const char byte : text) {
    if (byte == ' ') {
      escaped->append(kSpace);
    } else {
      escaped->push_back(byte);
    }
  }
}

std::string Unescaped(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size();) {
    const bool space = text.substr(i).starts_with(kSpace);
    plain.push_back(space ? ' ' : text[i]);
    i += space ? kSpace.size() : 1;
  }
  return plain;
}

// The next character, or one byte that is none.
std::string_view NextCharacter(std::string_view text) {
  return text.substr(0, std::max<size_t>(1, Utf8CharacterSize(text)));
}

// The bytes of a character (at most four) as a number.
uint32_t Packed(std::string_view character) {
  uint32_t packed = 0;
  for (const char byte : character) packed = packed << 8 | static_cast<unsigned char>(byte);
  return packed;
}

bool Mergeable(TokenKind kind) {
  return kind == TokenKind::kNormal || kind == TokenKind::kUserDefined;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Tokenizer>> SentencePieceTokenizer::Make(
    const GgufFile& file) {
  ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Load(file));
  auto tokenizer =
      std::unique_ptr<SentencePieceTokenizer>(new SentencePieceTokenizer(std::move(vocabulary)));
  RETURN_IF_ERROR(tokenizer->LoadFlags(file, /*adds_bos=*/true));
  ASSIGN_OR_RETURN(tokenizer->adds_space_, file.BoolOr("tokenizer.ggml.add_space_prefix", true));
  RETURN_IF_ERROR(tokenizer->LoadRanks(file));
  RETURN_IF_ERROR(tokenizer->LoadBytes(file));
  tokenizer->LoadPieces();
  return std::unique_ptr<const Tokenizer>(std::move(tokenizer));
}

absl::Status SentencePieceTokenizer::LoadRanks(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::vector<float> scores, file.Floats(kScoresKey));
  if (scores.size() != static_cast<size_t>(vocabulary().size())) {
    return absl::DataLossError(absl::StrFormat("%s: %s has %d entries for %d tokens", file.path(),
                                               kScoresKey, scores.size(), vocabulary().size()));
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!std::isnan(scores[i])) continue;
    return absl::DataLossError(
        absl::StrFormat("%s: %s of token %d is not a number", file.path(), kScoresKey, i));
  }
  std::vector<float> sorted = scores;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  ranks_.reserve(scores.size());
  for (const float score : scores) {
    const auto place = std::lower_bound(sorted.begin(), sorted.end(), score, std::greater<>());
    ranks_.push_back(static_cast<uint32_t>(place - sorted.begin()));
  }
  return absl::OkStatus();
}

absl::Status SentencePieceTokenizer::LoadBytes(const GgufFile& file) {
  size_t size = 0;
  for (TokenId token = 0; token < vocabulary().size(); ++token) {
    size += vocabulary().text(token).size();
  }
  bytes_.Reserve(vocabulary().size(), size);
  byte_tokens_.fill(-1);
  for (int byte = 0; byte < 256; ++byte) {
    const std::optional<TokenId> token = vocabulary().Find(absl::StrFormat("<0x%02X>", byte));
    if (token && vocabulary().kind(*token) == TokenKind::kByte) byte_tokens_[byte] = *token;
  }
  for (TokenId token = 0; token < vocabulary().size(); ++token) {
    const std::string_view text = vocabulary().text(token);
    if (vocabulary().kind(token) == TokenKind::kNormal) {
      bytes_.Add(Unescaped(text));
    } else if (vocabulary().kind(token) == TokenKind::kByte) {
      const auto byte = std::find(byte_tokens_.begin(), byte_tokens_.end(), token);
      if (byte == byte_tokens_.end()) {
        return absl::DataLossError(
            absl::StrFormat("%s: tokenizer.ggml.tokens: token %d is a byte token, but its "
                            "text is not \"<0x00>\" to \"<0xFF>\"",
                            file.path(), token));
      }
      const char value = static_cast<char>(byte - byte_tokens_.begin());
      bytes_.Add({&value, 1});
    } else {
      bytes_.Add(text);
    }
  }
  return absl::OkStatus();
}

void SentencePieceTokenizer::LoadPieces() {
  pieces_.reserve(vocabulary().size());
  for (TokenId token = 0; token < vocabulary().size(); ++token) {
    if (!Mergeable(vocabulary().kind(token))) continue;
    const std::string_view text = vocabulary().text(token);
    longest_piece_ = std::max(longest_piece_, text.size());
    pieces_.emplace(text, Merge{.rank = ranks_[token], .token = token});
    std::string_view previous;
    for (size_t i = 0; i < text.size(); i += previous.size()) {
      const std::string_view character = NextCharacter(text.substr(i));
      if (character == kSpace && i > 0) before_space_.insert(Packed(previous));
      previous = character;
    }
  }
}

void SentencePieceTokenizer::EncodePlain(std::string_view text,
                                         std::vector<TokenId>* tokens) const {
  std::string escaped;
  escaped.reserve(text.size() + text.size() / 2);
  if (adds_space_) escaped.append(kSpace);
  AppendEscaped(text, &escaped);
  std::vector<MergeSymbol> symbols;
  for (std::string_view rest = escaped; !rest.empty();) {
    const std::string_view word = NextWord(rest);
    EncodeWord(word, &symbols, tokens);
    rest.remove_prefix(word.size());
  }
}

std::string_view SentencePieceTokenizer::NextWord(std::string_view text) const {
  std::string_view previous = NextCharacter(text);
  size_t end = previous.size();
  while (end < text.size()) {
    const std::string_view character = NextCharacter(text.substr(end));
    if (character == kSpace && !before_space_.contains(Packed(previous))) break;
    previous = character;
    end += character.size();
  }
  return text.substr(0, end);
}

void SentencePieceTokenizer::EncodeWord(std::string_view word, std::vector<MergeSymbol>* symbols,
                                        std::vector<TokenId>* tokens) const {
  symbols->clear();
  for (size_t i = 0; i < word.size();) {
    const std::string_view character = NextCharacter(word.substr(i));
    const auto piece = pieces_.find(character);
    AppendSymbol(piece == pieces_.end() ? -1 : piece->second.token, i, character.size(), symbols);
    i += character.size();
  }
  const auto find = [&](const MergeSymbol& left, const MergeSymbol& right) -> std::optional<Merge> {
    const size_t size = left.size + right.size;
    if (size > longest_piece_) return std::nullopt;
    const auto piece = pieces_.find(word.substr(left.begin, size));
    if (piece == pieces_.end()) return std::nullopt;
    return piece->second;
  };
  MergeLoop(symbols, find).Run();
  for (int32_t i = 0; i >= 0; i = (*symbols)[i].next) {
    const MergeSymbol& symbol = (*symbols)[i];
    if (symbol.token >= 0) {
      tokens->push_back(symbol.token);
      continue;
    }
    for (const char byte : word.substr(symbol.begin, symbol.size)) {
      const TokenId token = byte_tokens_[static_cast<unsigned char>(byte)];
      if (token >= 0) {
        tokens->push_back(token);
      } else if (vocabulary().unknown()) {
        tokens->push_back(*vocabulary().unknown());
      }
    }
  }
}

std::string SentencePieceTokenizer::Decode(const std::vector<TokenId>& tokens, bool special) const {
  std::string text = VocabularyTokenizer::Decode(tokens, special);
  if (!adds_space_ || !text.starts_with(' ')) return text;
  return text.substr(1);
}

}  // namespace condense
