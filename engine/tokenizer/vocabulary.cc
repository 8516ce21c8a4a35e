#include "engine/tokenizer/vocabulary.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
constexpr std::string_view kKindsKey = "tokenizer.ggml.token_type";

// Texts that end a turn or a document, where they are control tokens.
constexpr std::string_view kEndTexts[] = {"<|im_end|>",    "<|eot_id|>",    "<|end_of_text|>",
                                          "<|endoftext|>", "<end_of_turn>", "<|end|>",
                                          "</s>"};
// These are control tokens even in files that call them user-defined: otherwise plain text would be
// read as a turn. Not so "</s>", which is a mark-up tag in some vocabularies.
constexpr std::string_view kAlwaysControl[] = {
    "<|im_start|>",      "<|im_end|>",    "<|start_header_id|>",
    "<|end_header_id|>", "<|eot_id|>",    "<|begin_of_text|>",
    "<|end_of_text|>",   "<|endoftext|>", "<start_of_turn>",
    "<end_of_turn>",     "<|end|>"};

// Converters write "none" as -1 in 32 bits.
constexpr int64_t kNoToken = 0xffffffff;

absl::StatusOr<std::optional<TokenId>> LoadId(const GgufFile& file, std::string_view key,
                                              TokenId size) {
  if (file.Find(key) == nullptr) return std::optional<TokenId>();
  ASSIGN_OR_RETURN(const int64_t id, file.Int(key, -1, kNoToken));
  if (id == kNoToken || id == -1) return std::optional<TokenId>();
  if (id >= size) {
    return absl::DataLossError(
        absl::StrFormat("%s: %s is %d, but there are only %d tokens", file.path(), key, id, size));
  }
  return std::optional<TokenId>(static_cast<TokenId>(id));
}

}  // namespace

absl::StatusOr<Vocabulary> Vocabulary::Load(const GgufFile& file) {
  Vocabulary vocabulary;
  RETURN_IF_ERROR(vocabulary.LoadTexts(file));
  RETURN_IF_ERROR(vocabulary.LoadKinds(file));
  RETURN_IF_ERROR(vocabulary.LoadIds(file));
  return vocabulary;
}

std::optional<TokenId> Vocabulary::Find(std::string_view text) const {
  const auto found = ids_.find(text);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

absl::Status Vocabulary::LoadTexts(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::vector<std::string_view>* texts, file.Strings(kTokensKey));
  if (texts->empty()) {
    return absl::DataLossError(absl::StrFormat("%s: %s is empty", file.path(), kTokensKey));
  }
  if (texts->size() > INT32_MAX) {
    return absl::DataLossError(absl::StrFormat("%s: %s has %d entries, more than %d", file.path(),
                                               kTokensKey, texts->size(), INT32_MAX));
  }
  size_t bytes = 0;
  for (const std::string_view text : *texts) bytes += text.size();
  texts_.Reserve(texts->size(), bytes);
  for (const std::string_view text : *texts) texts_.Add(text);

  ids_.reserve(texts->size());
  for (size_t i = 0; i < texts->size(); ++i) {
    const auto [entry, added] = ids_.emplace(texts_[i], static_cast<TokenId>(i));
    if (added) continue;
    return absl::DataLossError(absl::StrFormat(
        "%s: %s: token %d repeats the text of token %d, \"%s\"", file.path(), kTokensKey, i,
        entry->second, absl::CHexEscape(absl::string_view(texts_[i].data(), texts_[i].size()))));
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::LoadKinds(const GgufFile& file) {
  kinds_.assign(texts_.size(), TokenKind::kNormal);
  if (file.Find(kKindsKey) != nullptr) {
    ASSIGN_OR_RETURN(const std::vector<int64_t> kinds, file.Ints(kKindsKey));
    if (kinds.size() != kinds_.size()) {
      return absl::DataLossError(absl::StrFormat("%s: %s has %d entries for %d tokens", file.path(),
                                                 kKindsKey, kinds.size(), kinds_.size()));
    }
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (kinds[i] < 0 || kinds[i] > static_cast<int64_t>(TokenKind::kByte)) {
        return absl::DataLossError(absl::StrFormat("%s: %s of token %d is %d, not one of 0 to 6",
                                                   file.path(), kKindsKey, i, kinds[i]));
      }
      // Kind 0 is "undefined" in the format; readers treat it as a normal token.
      if (kinds[i] != 0) kinds_[i] = static_cast<TokenKind>(kinds[i]);
    }
  }
  for (const std::string_view text : kAlwaysControl) {
    const std::optional<TokenId> token = Find(text);
    if (token && kinds_[*token] == TokenKind::kUserDefined) kinds_[*token] = TokenKind::kControl;
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::LoadIds(const GgufFile& file) {
  ASSIGN_OR_RETURN(bos_, LoadId(file, "tokenizer.ggml.bos_token_id", size()));
  ASSIGN_OR_RETURN(eos_, LoadId(file, "tokenizer.ggml.eos_token_id", size()));
  ASSIGN_OR_RETURN(unknown_, LoadId(file, "tokenizer.ggml.unknown_token_id", size()));
  ASSIGN_OR_RETURN(const std::optional<TokenId> eot,
                   LoadId(file, "tokenizer.ggml.eot_token_id", size()));
  ASSIGN_OR_RETURN(const std::optional<TokenId> eom,
                   LoadId(file, "tokenizer.ggml.eom_token_id", size()));
  for (const std::optional<TokenId>& token : {eos_, eot, eom}) {
    if (token) end_tokens_.push_back(*token);
  }
  for (const std::string_view text : kEndTexts) {
    const std::optional<TokenId> token = Find(text);
    if (token && kinds_[*token] == TokenKind::kControl) end_tokens_.push_back(*token);
  }
  std::sort(end_tokens_.begin(), end_tokens_.end());
  end_tokens_.erase(std::unique(end_tokens_.begin(), end_tokens_.end()), end_tokens_.end());
  return absl::OkStatus();
}

}  // namespace condense
