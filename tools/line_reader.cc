#include "tools/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <optional>

// readline's headers expect stdio's FILE to be declared.
#include <readline/history.h>
#include <readline/readline.h>

namespace condense {
namespace {

enum class Ready { kInput, kInterrupt };

// Waits for input or Ctrl-C, whichever comes first.
Ready WaitForInput(const Interrupt& interrupt) {
  pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {interrupt.fd(), POLLIN, 0}};
  while (poll(fds, 2, -1) < 0 && errno == EINTR) {
  }
  return fds[1].revents != 0 ? Ready::kInterrupt : Ready::kInput;
}

class TerminalReader final : public LineReader {
 public:
  explicit TerminalReader(Interrupt* interrupt) : interrupt_(interrupt) {
    rl_readline_name = "condense";
    rl_catch_signals = 0;  // Interrupt has them
    rl_bind_key('\t', rl_insert);
    using_history();
  }

  Result Read(const std::string& prompt, std::string* line) override {
    entered_ = false;
    text_.reset();
    rl_callback_handler_install(prompt.c_str(), &TerminalReader::OnLine);
    while (!entered_) {
      if (WaitForInput(*interrupt_) == Ready::kInterrupt) return Abandon();
      rl_callback_read_char();
    }
    if (!text_) return Result::kEnd;
    *line = *text_;
    if (!line->empty()) add_history(line->c_str());
    return Result::kLine;
  }

  bool interactive() const override { return true; }

 private:
  // The editor's callback has no argument, hence the static members.
  static void OnLine(char* line) {
    rl_callback_handler_remove();
    entered_ = true;
    if (line == nullptr) return;
    text_ = line;
    std::free(line);
  }

  Result Abandon() {
    interrupt_->Take();
    rl_callback_sigcleanup();
    rl_free_line_state();
    rl_callback_handler_remove();
    std::fputs("^C\n", stdout);
    std::fflush(stdout);
    return Result::kInterrupted;
  }

  inline static bool entered_ = false;
  inline static std::optional<std::string> text_;

  Interrupt* const interrupt_;
};

class PlainReader final : public LineReader {
 public:
  explicit PlainReader(Interrupt* interrupt) : interrupt_(interrupt) {}

  Result Read(const std::string&, std::string* line) override {
    size_t end;
    while ((end = pending_.find('\n')) == std::string::npos && !ended_) {
      if (WaitForInput(*interrupt_) == Ready::kInterrupt) {
        interrupt_->Take();
        return Result::kInterrupted;
      }
      char piece[4096];
      const ssize_t size = read(STDIN_FILENO, piece, sizeof(piece));
      if (size > 0) pending_.append(piece, static_cast<size_t>(size));
      ended_ = size == 0 || (size < 0 && errno != EINTR && errno != EAGAIN);
    }
    if (pending_.empty()) return Result::kEnd;
    *line = pending_.substr(0, end);
    pending_.erase(0, end == std::string::npos ? end : end + 1);
    if (!line->empty() && line->back() == '\r') line->pop_back();
    return Result::kLine;
  }

  bool interactive() const override { return false; }

 private:
  Interrupt* const interrupt_;
  std::string pending_;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<LineReader> LineReader::Make(Interrupt* interrupt) {
  if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) {
    return std::make_unique<TerminalReader>(interrupt);
  }
  return std::make_unique<PlainReader>(interrupt);
}

}  // namespace condense
