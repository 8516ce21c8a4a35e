#include "engine/chat_template.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// The text of a string literal of the template language: \n, \', \" and \\ are read as what they
// stand for.
std::string Unescaped(std::string_view literal) {
  std::string text;
  for (size_t i = 0; i < literal.size(); ++i) {
    if (literal[i] != '\\' || i + 1 == literal.size()) {
      text.push_back(literal[i]);
      continue;
    }
    const char escaped = literal[++i];
    text.push_back(escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped);
  }
  return text;
}

// What stands between "<|im_start|>system\n" and "<|im_end|>" in one string literal of the
// template. A template may mention the opening elsewhere, where the system message of the client
// goes in between: there the literal ends first.
std::optional<std::string> ChatMlDefaultSystem(std::string_view text) {
  constexpr std::string_view kOpening = "<|im_start|>system";
  for (size_t at = text.find(kOpening); at != std::string_view::npos;
       at = text.find(kOpening, at + 1)) {
    std::string_view rest = text.substr(at + kOpening.size());
    if (rest.starts_with("\n")) {
      rest.remove_prefix(1);
    } else if (rest.starts_with("\\n")) {
      rest.remove_prefix(2);
    } else {
      continue;
    }
    const std::string_view content = rest.substr(0, rest.find("<|im_end|>"));
    if (content.size() == rest.size() || content.empty()) continue;
    const bool leaves_literal =
        Contains(content, "}}") || Contains(content, "' +") || Contains(content, "\" +");
    if (!leaves_literal) return Unescaped(content);
  }
  return std::nullopt;
}

// What a template gives as `name = "value"`, in either kind of quotes.
std::optional<std::string> AssignedText(std::string_view text, std::string_view name) {
  for (const char quote : {'"', '\''}) {
    const std::string opening = absl::StrFormat("%s = %c", name, quote);
    const size_t at = text.find(opening);
    if (at == std::string_view::npos) continue;
    const std::string_view rest = text.substr(at + opening.size());
    const size_t end = rest.find(quote);
    if (end != std::string_view::npos) return Unescaped(rest.substr(0, end));
  }
  return std::nullopt;
}

bool Trims(std::string_view template_text) {
  return Contains(template_text, "| trim") || Contains(template_text, "|trim");
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kWhite = " \t\n\v\f\r";
  const size_t begin = text.find_first_not_of(kWhite);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhite) + 1 - begin);
}

absl::Status BadMessage(size_t index, const std::string& role, std::string_view reason) {
  return absl::InvalidArgumentError(
      absl::StrFormat("messages[%d].role '%s': %s", index, role, reason));
}

}  // namespace

ChatTemplate ChatTemplate::Recognise(std::string_view template_text, std::string_view eos_text) {
  ChatTemplate result;
  const auto has = [template_text](std::string_view part) { return Contains(template_text, part); };
  result.writes_bos_ = has("bos_token");
  if (has("<|im_start|>") && has("<|im_end|>")) {
    result.SetUpChatMl(template_text);
  } else if (has("<|start_header_id|>") && has("<|eot_id|>")) {
    result.SetUpLlama3(template_text);
  } else if (has("<start_of_turn>") && has("<end_of_turn>")) {
    result.SetUpGemma(template_text);
  } else if (has("<|user|>") && has("<|assistant|>") && has("eos_token") && !has("<|end|>")) {
    result.SetUpZephyr(eos_text);
  } else if (has("[INST]") && has("[/INST]") && !has("<<SYS>>") && !has("[SYSTEM_PROMPT]")) {
    result.SetUpMistral(template_text, eos_text);
  }
  return result;
}

void ChatTemplate::SetUpChatMl(std::string_view template_text) {
  family_ = "chatml";
  system_ = {.before = "<|im_start|>system\n", .after = "<|im_end|>\n"};
  user_ = {.before = "<|im_start|>user\n", .after = "<|im_end|>\n"};
  assistant_ = {.before = "<|im_start|>assistant\n", .after = "<|im_end|>\n"};
  generation_ = assistant_.before;
  default_system_ = ChatMlDefaultSystem(template_text);
}

void ChatTemplate::SetUpLlama3(std::string_view template_text) {
  const auto turn = [](const std::string& role) {
    return Turn{.before = "<|start_header_id|>" + role + "<|end_header_id|>\n\n",
                .after = "<|eot_id|>",
                .trims = true};
  };
  family_ = "llama3";
  system_ = turn("system");
  user_ = turn("user");
  assistant_ = turn("assistant");
  generation_ = assistant_.before;
  // Later templates write a system turn always and begin it with two dates. Today's is taken as the
  // template has it, so that equal messages give equal prompts.
  constexpr std::string_view kCutoff = "Cutting Knowledge Date: December 2023";
  if (Contains(template_text, kCutoff)) {
    const std::string today = AssignedText(template_text, "date_string").value_or("26 Jul 2024");
    system_.before.append(kCutoff).append("\nToday Date: " + today + "\n\n");
    default_system_ = "";
  }
}

void ChatTemplate::SetUpGemma(std::string_view template_text) {
  family_ = "gemma";
  user_ = {.before = "<start_of_turn>user\n", .after = "<end_of_turn>\n", .trims = true};
  assistant_ = {.before = "<start_of_turn>model\n", .after = "<end_of_turn>\n", .trims = true};
  generation_ = assistant_.before;
  alternates_ = true;
  system_place_ = Contains(template_text, "System role not supported")
                      ? SystemPlace::kRefused
                      : SystemPlace::kFirstUserTurn;
}

void ChatTemplate::SetUpZephyr(std::string_view eos_text) {
  const std::string after = std::string(eos_text) + "\n";
  family_ = "zephyr";
  system_ = {.before = "<|system|>\n", .after = after};
  user_ = {.before = "<|user|>\n", .after = after};
  assistant_ = {.before = "<|assistant|>\n", .after = after};
  generation_ = assistant_.before;
}

void ChatTemplate::SetUpMistral(std::string_view template_text, std::string_view eos_text) {
  const auto has = [template_text](std::string_view part) { return Contains(template_text, part); };
  family_ = "mistral";
  user_ = {.before = "[INST] ", .after = has(" [/INST]") ? " [/INST]" : "[/INST]"};
  const bool space_before = has("' ' + message") || has("\" \" + message");
  const bool space_after =
      has("eos_token + ' '") || has("eos_token+ ' '") || has("eos_token + \" \"");
  assistant_ = {.before = space_before ? " " : "",
                .after = std::string(eos_text) + (space_after ? " " : ""),
                .trims = Trims(template_text)};
  alternates_ = true;
  if (!has("system")) {
    system_place_ = SystemPlace::kRefused;
  } else {
    system_place_ = has("loop.last and system_message") ? SystemPlace::kLastUserTurn
                                                        : SystemPlace::kFirstUserTurn;
  }
}

absl::StatusOr<std::string> ChatTemplate::Render(const std::vector<ChatMessage>& messages,
                                                 bool add_generation_prompt) const {
  ASSIGN_OR_RETURN(const std::vector<Piece> pieces, Pieces(messages, add_generation_prompt));
  std::string text;
  for (const Piece& piece : pieces) text += piece.text;
  return text;
}

absl::StatusOr<std::vector<TokenId>> ChatTemplate::Encode(const Tokenizer& tokenizer,
                                                          const std::vector<ChatMessage>& messages,
                                                          bool add_generation_prompt) const {
  ASSIGN_OR_RETURN(const std::vector<Piece> pieces, Pieces(messages, add_generation_prompt));
  std::vector<TextSegment> segments;
  for (const Piece& piece : pieces)
    segments.push_back({.text = piece.text, .parse_special = piece.markup});
  return tokenizer.EncodeSegments(segments, writes_bos_ || tokenizer.adds_bos());
}

absl::Status ChatTemplate::Check(const std::vector<ChatMessage>& messages) const {
  if (family_.empty()) {
    return absl::FailedPreconditionError(
        "the model file's chat template is missing or of no known family (chatml, llama3, gemma, "
        "zephyr, mistral): "
        "chat messages are refused; text and token ids work");
  }
  if (messages.empty())
    return absl::InvalidArgumentError("messages: at least one is needed, there are 0");
  const bool has_system = messages[0].role == "system";
  if (has_system && system_place_ == SystemPlace::kRefused) {
    return BadMessage(0, messages[0].role,
                      "this model's chat template has no place for a system message");
  }
  for (size_t i = has_system ? 1 : 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role == "system") return BadMessage(i, role, "a system message can only be the first");
    if (role != "user" && role != "assistant")
      return BadMessage(i, role, "must be system, user or assistant");
    const bool users_turn = (i - (has_system ? 1 : 0)) % 2 == 0;
    if (alternates_ && (role == "user") != users_turn) {
      return BadMessage(i, role, "user and assistant must take turns, the user first");
    }
  }
  if (has_system && messages.size() == 1 && system_place_ != SystemPlace::kOwnTurn) {
    return BadMessage(0, messages[0].role,
                      "this model's chat template needs a user message with it");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ChatTemplate::Piece>> ChatTemplate::Pieces(
    const std::vector<ChatMessage>& messages, bool add_generation_prompt) const {
  RETURN_IF_ERROR(Check(messages));
  std::vector<Piece> pieces;
  const auto add_turn = [&pieces](const Turn& turn, std::string_view prefix,
                                  std::string_view content) {
    pieces.push_back({.text = turn.before, .markup = true});
    std::string text(prefix);
    text.append(turn.trims ? Trimmed(content) : content);
    pieces.push_back({.text = std::move(text), .markup = false});
    pieces.push_back({.text = turn.after, .markup = true});
  };
  const bool has_system = messages[0].role == "system";
  if (system_place_ == SystemPlace::kOwnTurn && (has_system || default_system_)) {
    add_turn(system_, "", has_system ? messages[0].content : *default_system_);
  }
  size_t system_goes_to = messages.size();  // the message that the system message is put before
  if (has_system && system_place_ == SystemPlace::kFirstUserTurn) system_goes_to = 1;
  if (has_system && system_place_ == SystemPlace::kLastUserTurn) {
    system_goes_to = messages.back().role == "user" ? messages.size() - 1 : messages.size() - 2;
  }
  for (size_t i = has_system ? 1 : 0; i < messages.size(); ++i) {
    const std::string prefix = i == system_goes_to ? messages[0].content + "\n\n" : "";
    add_turn(messages[i].role == "user" ? user_ : assistant_, prefix, messages[i].content);
  }
  if (add_generation_prompt) pieces.push_back({.text = generation_, .markup = true});
  return pieces;
}

}  // namespace condense
