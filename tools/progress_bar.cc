#include "tools/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace condense {
namespace {

constexpr int kBarWidth = 30;
constexpr absl::Duration kRedrawEvery = absl::Milliseconds(100);

}  // namespace

ProgressBar::ProgressBar(bool enabled) : enabled_(enabled && isatty(STDERR_FILENO)) {}

ProgressBar::~ProgressBar() {
  if (enabled_ && last_ != absl::InfinitePast()) std::fputs("\r\x1b[K", stderr);
}

void ProgressBar::Show(double share, const std::string& note) {
  const absl::Time now = absl::Now();
  if (!enabled_ || now - last_ < kRedrawEvery) return;
  last_ = now;
  std::fprintf(stderr, "\r%s  %s\x1b[K", DrawBar(share, kBarWidth).c_str(), note.c_str());
  std::fflush(stderr);
}

std::string DrawBar(double share, int width) {
  const double inside = std::clamp(share, 0.0, 1.0);
  const int full = static_cast<int>(inside * width);
  std::string cells(full, '=');
  if (full < width) cells += '>';
  cells.resize(width, ' ');
  return absl::StrFormat("[%s] %3d%%", cells, static_cast<int>(inside * 100));
}

}  // namespace condense
