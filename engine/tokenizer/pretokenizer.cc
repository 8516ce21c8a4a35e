#define PCRE2_CODE_UNIT_WIDTH 8

#include "engine/tokenizer/pretokenizer.h"

#include <pcre2.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "engine/utf8.h"
#include "kernels/base/check.h"

namespace condense {
namespace {

// White space by Unicode's property, for use inside a class: SPACE in the patterns below. PCRE2's
// \s would add U+180E.
constexpr char kSpace[] =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// English contractions; letters, digits or other characters, each with a space before; of several
// spaces the last one goes with what follows.
constexpr char kWords[] =
    R"('(?:[stmd]|re|ve|ll)| ?\p{L}++| ?\p{N}++| ?[^SPACE\p{L}\p{N}]++|[SPACE]+(?![^SPACE])|[SPACE]++)";
// The same after each digit was cut off as a word of its own: a digit is the end of the text for
// what stands before.
constexpr char kWordsAndDigits[] =
    R"(\p{N}|'(?:[stmd]|re|ve|ll)| ?\p{L}++| ?[^SPACE\p{L}\p{N}]++|[SPACE]+(?![^SPACE\p{N}])|[SPACE]++)";
// Contractions in either case, any one sign before letters, digits in threes, line breaks with what
// stands before.
constexpr char kWordsByThreeDigits[] =
    R"('(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])|[^\r\n\p{L}\p{N}]?\p{L}++|\p{N}{1,3}+)"
    R"(| ?[^SPACE\p{L}\p{N}]++[\r\n]*+|[SPACE]*[\r\n]++|[SPACE]+(?![^SPACE])|[SPACE]++)";
// The same with digits one by one.
constexpr char kWordsByOneDigit[] =
    R"('(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])|[^\r\n\p{L}\p{N}]?\p{L}++|\p{N})"
    R"(| ?[^SPACE\p{L}\p{N}]++[\r\n]*+|[SPACE]*[\r\n]++|[SPACE]+(?![^SPACE])|[SPACE]++)";
// Cut one after the other, and before and after kWords, where the file names no rule.
constexpr char kPunctuation[] = R"([\p{P}$+<=>^~|]++)";
constexpr char kNumbers[] = R"(\p{N}++)";
constexpr char kThreeDigits[] = R"([0-9]{3})";

}  // namespace

struct Pretokenizer::Rule {
  const char* name;
  std::vector<const char*> patterns;
  bool takes_whole_words = false;
  bool adds_bos = false;
};

const std::vector<Pretokenizer::Rule>& Pretokenizer::Rules() {
  static const auto& rules = *new std::vector<Rule>{
      {.name = "default", .patterns = {kPunctuation, kWords, kNumbers, kThreeDigits}},
      {.name = "gpt-2", .patterns = {kWords}},
      {.name = "llama-bpe",
       .patterns = {kWordsByThreeDigits},
       .takes_whole_words = true,
       .adds_bos = true},
      {.name = "qwen2", .patterns = {kWordsByOneDigit}},
      {.name = "smollm", .patterns = {kWordsAndDigits}},
  };
  return rules;
}

namespace {

// Other names that files use for the same rules.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"llama3", "llama-bpe"}, {"llama-v3", "llama-bpe"}, {"deepseek-r1-qwen", "qwen2"}};

}  // namespace

// One compiled pattern. Threads: immutable; thread-safe, each Split has its own match data.
class Pretokenizer::Pattern {
 public:
  explicit Pattern(const char* text) {
    const std::string pattern = absl::StrReplaceAll(text, {{"SPACE", kSpace}});
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                          PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    CHECK(code_ != nullptr);
    // Where there is no JIT compiler the interpreter matches, to the same result.
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);
  }
  ~Pattern() { pcre2_code_free(code_); }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  // Appends the words of `text`: what the pattern matches, and what stands between matches.
  // REQUIRES: `text` is UTF-8.
  void Split(std::string_view text, std::vector<std::string_view>* words) const {
    Matcher matcher(code_, text);
    size_t done = 0;
    size_t begin = 0;
    size_t end = 0;
    while (done < text.size() && matcher.Next(done, &begin, &end)) {
      if (begin > done) words->push_back(text.substr(done, begin - done));
      words->push_back(text.substr(begin, end - begin));
      done = end;
    }
    if (done < text.size()) words->push_back(text.substr(done));
  }

 private:
  // The matches of one text. The limits let every one of our patterns go through in linear time and
  // turn anything else into "no further match" instead of a long wait or a deep stack.
  class Matcher {
   public:
    Matcher(const pcre2_code* code, std::string_view text)
        : code_(code),
          text_(text),
          data_(pcre2_match_data_create(1, nullptr)),
          context_(pcre2_match_context_create(nullptr)) {
      CHECK(data_ != nullptr && context_ != nullptr);
      const size_t limit = std::min<size_t>(UINT32_MAX, 4 * text.size() + 100000);
      pcre2_set_match_limit(context_, static_cast<uint32_t>(limit));
      pcre2_set_depth_limit(context_, 1000);
      pcre2_set_heap_limit(context_, 16 * 1024);
    }
    ~Matcher() {
      pcre2_match_context_free(context_);
      pcre2_match_data_free(data_);
    }
    Matcher(const Matcher&) = delete;
    Matcher& operator=(const Matcher&) = delete;

    bool Next(size_t from, size_t* begin, size_t* end) {
      const int found = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(),
                                    from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data_, context_);
      if (found < 1) return false;
      const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data_);
      *begin = range[0];
      *end = range[1];
      return true;
    }

   private:
    const pcre2_code* code_;
    std::string_view text_;
    pcre2_match_data* data_;
    pcre2_match_context* context_;
  };

  pcre2_code* code_ = nullptr;
};

Pretokenizer::Pretokenizer(const Rule& rule)
    : takes_whole_words_(rule.takes_whole_words), adds_bos_(rule.adds_bos) {
  for (const char* pattern : rule.patterns) patterns_.push_back(std::make_unique<Pattern>(pattern));
}
Pretokenizer::~Pretokenizer() = default;

absl::StatusOr<std::unique_ptr<const Pretokenizer>> Pretokenizer::Make(std::string_view name) {
  std::string_view rule_name = name;
  for (const auto& [alias, meant] : kAliases) {
    if (name == alias) rule_name = meant;
  }
  std::string known;
  for (const Rule& rule : Rules()) {
    if (rule.name == rule_name) return std::unique_ptr<const Pretokenizer>(new Pretokenizer(rule));
    absl::StrAppend(&known, known.empty() ? "" : ", ", rule.name);
  }
  return absl::UnimplementedError(
      absl::StrFormat("tokenizer.ggml.pre '%s' is not known; known are: %s", name, known));
}

std::vector<std::string_view> Pretokenizer::Split(std::string_view text) const {
  std::vector<std::string_view> words;
  const auto split_valid = [&](std::string_view part) {
    std::vector<std::string_view> parts = {part};
    for (const auto& pattern : patterns_) {
      std::vector<std::string_view> finer;
      for (const std::string_view word : parts) pattern->Split(word, &finer);
      parts = std::move(finer);
    }
    words.insert(words.end(), parts.begin(), parts.end());
  };
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = begin;
    while (const size_t size = Utf8CharacterSize(text.substr(end))) end += size;
    if (end > begin) split_valid(text.substr(begin, end - begin));
    begin = end;
    while (end < text.size() && Utf8CharacterSize(text.substr(end)) == 0) ++end;
    if (end > begin) words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

}  // namespace condense
