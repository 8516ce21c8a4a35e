#include "tools/screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

namespace condense {
namespace {

constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l";  // the alternate screen, no cursor
constexpr char kLeave[] = "\x1b[?25h\x1b[?1049l";
constexpr char kHome[] = "\x1b[H";
constexpr char kClearLine[] = "\x1b[K";
constexpr char kClearBelow[] = "\x1b[J";

constexpr int kFallbackHeight = 24;

winsize Size() {
  winsize size = {};
  // A terminal that does not know its size says 0.
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) size = {};
  if (size.ws_col == 0) size.ws_col = Screen::kPlainWidth;
  if (size.ws_row == 0) size.ws_row = kFallbackHeight;
  return size;
}

void Write(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

Screen::Screen() : is_terminal_(isatty(STDOUT_FILENO) != 0) {
  if (is_terminal_) Write(kEnter);
}

Screen::~Screen() {
  if (is_terminal_) Write(kLeave);
}

int Screen::width() const { return is_terminal_ ? Size().ws_col : kPlainWidth; }

void Screen::Show(const std::string& lines) {
  if (is_terminal_) {
    Write(FrameOf(lines, Size().ws_row));
  } else {
    Write(shown_ ? "\n" + lines : lines);
  }
  shown_ = true;
}

std::string FrameOf(const std::string& lines, int height) {
  std::string frame = kHome;
  std::string_view left = lines;
  for (int line = 0; line < height && !left.empty(); ++line) {
    const size_t end = left.find('\n');
    // No newline after the last one: it would scroll.
    if (line > 0) frame += '\n';
    frame += std::string(left.substr(0, end)) + kClearLine;
    left.remove_prefix(end == std::string_view::npos ? left.size() : end + 1);
  }
  return frame + kClearBelow;
}

}  // namespace condense
