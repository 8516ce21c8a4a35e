#include "tools/eval/eval_text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr int64_t kLookAhead = 100;

bool EndsSentence(const std::string& bytes) {
  const size_t last = bytes.find_last_not_of(' ');
  return last != std::string::npos && std::string(".!?\n").find(bytes[last]) != std::string::npos;
}

}  // namespace

absl::StatusOr<std::string> ReadEvalText(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::NotFoundError(absl::StrFormat("--text: \"%s\" is not a file", path));
  }
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error || size == 0 || size > kMaxEvalTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--text: \"%s\" has %d bytes; a text has 1 to %d", path, error ? 0 : size,
                        kMaxEvalTextBytes));
  }
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in.good() && !in.eof()) text.clear();
  if (text.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat("--text: cannot read \"%s\"", path));
  }
  return text;
}

EvalText::EvalText(std::string name, std::string_view text, const Tokenizer& tokenizer)
    : name_(std::move(name)), tokens_(tokenizer.Encode(text, {})) {}

std::span<const TokenId> EvalText::Piece(int64_t index, int64_t count, int64_t length) const {
  CHECK_GE(index, 0);
  CHECK_LT(index, count);
  CHECK_LE(length, size());
  const int64_t first = count == 1 ? 0 : (size() - length) * index / (count - 1);
  return std::span(tokens_).subspan(first, length);
}

int64_t SentenceStart(std::span<const TokenId> tokens, int64_t from, const Tokenizer& tokenizer) {
  const int64_t end = std::min<int64_t>(static_cast<int64_t>(tokens.size()), from + kLookAhead);
  for (int64_t i = std::max<int64_t>(from, 1); i < end; ++i) {
    if (EndsSentence(tokenizer.TokenBytes(tokens[i - 1], /*special=*/false))) return i;
  }
  return from;
}

}  // namespace condense
