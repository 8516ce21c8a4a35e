#ifndef CONDENSE_TOOLS_SCREEN_H_
#define CONDENSE_TOOLS_SCREEN_H_

// Standard output for a view that is shown again and again.

#include <string>

namespace condense {

// A terminal shows each view in place of the one before, on its alternate screen, and is given back
// as it was. Anything else gets them one after the other, without control codes, an empty line
// between. Threads: thread-compatible. At most one at a time.
class Screen {
 public:
  static constexpr int kPlainWidth = 80;

  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // Cells in a line at present, at least 1; kPlainWidth if this is no terminal.
  int width() const;
  // Lines that end with a newline and hold no control characters. A terminal shows as many as it
  // has room for.
  void Show(const std::string& lines);

 private:
  const bool is_terminal_;
  bool shown_ = false;
};

// What a terminal of `height` lines is sent to show `lines` in place of what it shows.
std::string FrameOf(const std::string& lines, int height);

}  // namespace condense

#endif  // CONDENSE_TOOLS_SCREEN_H_
