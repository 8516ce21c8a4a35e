#include "engine/tokenizer/bpe.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "engine/tokenizer/byte_alphabet.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";

uint64_t PairKey(TokenId left, TokenId right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

std::string Escaped(std::string_view text) {
  return absl::CHexEscape(absl::string_view(text.data(), text.size()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Tokenizer>> BpeTokenizer::Make(const GgufFile& file) {
  ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Load(file));
  auto tokenizer = std::unique_ptr<BpeTokenizer>(new BpeTokenizer(std::move(vocabulary)));
  ASSIGN_OR_RETURN(const std::string rule, file.StringOr("tokenizer.ggml.pre", "default"));
  absl::StatusOr<std::unique_ptr<const Pretokenizer>> pretokenizer = Pretokenizer::Make(rule);
  if (!pretokenizer.ok()) {
    return absl::Status(pretokenizer.status().code(),
                        absl::StrFormat("%s: %s", file.path(), pretokenizer.status().message()));
  }
  tokenizer->pretokenizer_ = *std::move(pretokenizer);
  RETURN_IF_ERROR(tokenizer->LoadFlags(file, tokenizer->pretokenizer_->adds_bos()));
  RETURN_IF_ERROR(tokenizer->LoadMerges(file));
  tokenizer->LoadBytes();
  tokenizer->FindWholeWords();
  return std::unique_ptr<const Tokenizer>(std::move(tokenizer));
}

absl::Status BpeTokenizer::LoadMerges(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::vector<std::string_view>* merges, file.Strings(kMergesKey));
  merges_.reserve(merges->size());
  std::string joined;
  for (size_t rank = 0; rank < merges->size(); ++rank) {
    const std::string_view merge = (*merges)[rank];
    // A space that is the first byte belongs to the left text: the alphabet has no space of its
    // own.
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      return absl::DataLossError(
          absl::StrFormat("%s: %s: entry %d, \"%s\", is not two texts with a space between",
                          file.path(), kMergesKey, rank, Escaped(merge)));
    }
    const std::string_view left = merge.substr(0, space);
    const std::string_view right = merge.substr(space + 1);
    joined.assign(left).append(right);
    for (const std::string_view text : {left, right, std::string_view(joined)}) {
      if (vocabulary().Find(text)) continue;
      return absl::DataLossError(
          absl::StrFormat("%s: %s: entry %d, \"%s\", needs a token \"%s\" that does not exist",
                          file.path(), kMergesKey, rank, Escaped(merge), Escaped(text)));
    }
    // Of a pair given twice the first, better, rank holds.
    merges_.try_emplace(
        PairKey(*vocabulary().Find(left), *vocabulary().Find(right)),
        Merge{.rank = static_cast<uint32_t>(rank), .token = *vocabulary().Find(joined)});
  }
  return absl::OkStatus();
}

void BpeTokenizer::LoadBytes() {
  size_t size = 0;
  for (TokenId token = 0; token < vocabulary().size(); ++token) {
    size += vocabulary().text(token).size();
  }
  bytes_.Reserve(vocabulary().size(), size);
  std::string bytes;
  for (TokenId token = 0; token < vocabulary().size(); ++token) {
    const std::string_view text = vocabulary().text(token);
    const bool mapped =
        vocabulary().kind(token) == TokenKind::kNormal && ByteAlphabet::Get().ToBytes(text, &bytes);
    bytes_.Add(mapped ? std::string_view(bytes) : text);
  }
  for (int byte = 0; byte < 256; ++byte) {
    byte_tokens_[byte] = vocabulary().Find(ByteAlphabet::Get().Character(byte)).value_or(-1);
  }
}

void BpeTokenizer::FindWholeWords() {
  std::vector<MergeSymbol> symbols;
  std::vector<TokenId> merged;
  std::string bytes;
  words_.reserve(vocabulary().size());
  for (TokenId token = 0; token < vocabulary().size(); ++token) {
    if (vocabulary().kind(token) != TokenKind::kNormal) continue;
    if (!ByteAlphabet::Get().ToBytes(vocabulary().text(token), &bytes)) continue;
    const std::string_view word = bytes_[token];
    if (!pretokenizer_->takes_whole_words()) {
      merged.clear();
      MergeWord(word, &symbols, &merged);
      if (merged.size() != 1 || merged[0] != token) continue;
    }
    words_.emplace(word, token);
    longest_word_ = std::max(longest_word_, word.size());
  }
}

void BpeTokenizer::EncodePlain(std::string_view text, std::vector<TokenId>* tokens) const {
  std::vector<MergeSymbol> symbols;
  for (const std::string_view word : pretokenizer_->Split(text)) EncodeWord(word, &symbols, tokens);
}

void BpeTokenizer::EncodeWord(std::string_view word, std::vector<MergeSymbol>* symbols,
                              std::vector<TokenId>* tokens) const {
  const auto whole = word.size() <= longest_word_ ? words_.find(word) : words_.end();
  if (whole != words_.end()) {
    tokens->push_back(whole->second);
  } else {
    MergeWord(word, symbols, tokens);
  }
}

void BpeTokenizer::MergeWord(std::string_view word, std::vector<MergeSymbol>* symbols,
                             std::vector<TokenId>* tokens) const {
  symbols->clear();
  for (size_t i = 0; i < word.size(); ++i) {
    AppendSymbol(byte_tokens_[static_cast<unsigned char>(word[i])], i, 1, symbols);
  }
  const auto find = [this](const MergeSymbol& left,
                           const MergeSymbol& right) -> std::optional<Merge> {
    if (left.token < 0 || right.token < 0) return std::nullopt;
    const auto merge = merges_.find(PairKey(left.token, right.token));
    if (merge == merges_.end()) return std::nullopt;
    return merge->second;
  };
  MergeLoop(symbols, find).Run();
  for (int32_t i = symbols->empty() ? -1 : 0; i >= 0; i = (*symbols)[i].next) {
    // Vocabularies trained on text may lack rare bytes. Such a byte is left out, as these models
    // were trained.
    if ((*symbols)[i].token >= 0) tokens->push_back((*symbols)[i].token);
  }
}

}  // namespace condense
