#ifndef CONDENSE_ENGINE_CHAT_TEMPLATE_H_
#define CONDENSE_ENGINE_CHAT_TEMPLATE_H_

// Chat messages -> prompt text, by the family that the model file's template belongs to.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/tokenizer.h"

namespace condense {

struct ChatMessage {
  std::string role;  // system | user | assistant
  std::string content;
};

// Threads: immutable; thread-safe.
class ChatTemplate {
 public:
  // Recognises the family of `template_text` (the file's tokenizer.chat_template). An unrecognised
  // or empty one gives a ChatTemplate whose Render fails with FAILED_PRECONDITION and says why.
  // `eos_text` is what the template means by its variable eos_token: the text of the tokenizer's
  // EOS.
  static ChatTemplate Recognise(std::string_view template_text, std::string_view eos_text = "</s>");

  // "chatml", "llama3", "gemma", "zephyr", "mistral", or "" if unrecognised.
  const std::string& family() const { return family_; }

  // The prompt's text, without BOS. INVALID_ARGUMENT naming the message and its role for unknown
  // roles, wrong order or no messages.
  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages,
                                     bool add_generation_prompt) const;

  // The prompt's ids. Markup is parsed as special tokens, contents are plain text: a client cannot
  // inject a turn where turns are marked by special tokens. BOS is decided here, once: by the
  // template where it writes one, else by the tokenizer.
  absl::StatusOr<std::vector<TokenId>> Encode(const Tokenizer& tokenizer,
                                              const std::vector<ChatMessage>& messages,
                                              bool add_generation_prompt) const;

 private:
  // What stands around a message of one role.
  struct Turn {
    std::string before;
    std::string after;
    bool trims = false;  // white space around the content is removed
  };
  // Where the system message goes.
  enum class SystemPlace { kOwnTurn, kFirstUserTurn, kLastUserTurn, kRefused };
  // A rendered prompt is a row of pieces: markup or content.
  struct Piece {
    std::string text;
    bool markup = false;
  };

  // Each sets up one family, with the variations that its template shows.
  void SetUpChatMl(std::string_view template_text);
  void SetUpLlama3(std::string_view template_text);
  void SetUpGemma(std::string_view template_text);
  void SetUpZephyr(std::string_view eos_text);
  void SetUpMistral(std::string_view template_text, std::string_view eos_text);

  absl::Status Check(const std::vector<ChatMessage>& messages) const;
  absl::StatusOr<std::vector<Piece>> Pieces(const std::vector<ChatMessage>& messages,
                                            bool add_generation_prompt) const;

  std::string family_;
  Turn system_, user_, assistant_;
  std::string generation_;  // opens the answer
  SystemPlace system_place_ = SystemPlace::kOwnTurn;
  std::optional<std::string> default_system_;  // the system message where the client gives none
  bool alternates_ = false;                    // user and assistant must take turns, the user first
  bool writes_bos_ = false;                    // the template begins with BOS itself
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_CHAT_TEMPLATE_H_
