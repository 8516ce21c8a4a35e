#ifndef CONDENSE_TOOLS_PROGRESS_BAR_H_
#define CONDENSE_TOOLS_PROGRESS_BAR_H_

// One line on stderr that shows how far a long run is; nothing where stderr is no terminal.

#include <string>

#include "absl/time/time.h"

namespace condense {

// Threads: thread-compatible.
class ProgressBar {
 public:
  // `enabled`: draw at all (and only on a terminal).
  explicit ProgressBar(bool enabled);
  // Erases the line.
  ~ProgressBar();
  // Draws `share` of 1 and a note, at most ten times a second.
  void Show(double share, const std::string& note);

 private:
  const bool enabled_;
  absl::Time last_ = absl::InfinitePast();
};

// "[=====>    ]  52%" with `width` cells between the brackets.
std::string DrawBar(double share, int width);

}  // namespace condense

#endif  // CONDENSE_TOOLS_PROGRESS_BAR_H_
