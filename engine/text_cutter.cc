#include "engine/text_cutter.h"

#include <algorithm>

#include "engine/utf8.h"

namespace condense {

bool TextCutter::FindStop(size_t* begin, int32_t* index) const {
  bool found = false;
  for (size_t i = 0; i < stop_strings_.size(); ++i) {
    const size_t at = pending_.find(stop_strings_[i], std::max(unstoppable_, searched_));
    if (at == std::string::npos || (found && at >= *begin)) continue;
    found = true;
    *begin = at;
    *index = static_cast<int32_t>(i);
  }
  return found;
}

size_t TextCutter::HeldForStop() const {
  size_t held = 0;
  for (const std::string& stop : stop_strings_) {
    size_t length = std::min(stop.size() - 1, pending_.size() - unstoppable_);
    while (length > held &&
           pending_.compare(pending_.size() - length, length, stop, 0, length) != 0)
      --length;
    held = std::max(held, length);
  }
  return held;
}

TextCut TextCutter::Release(size_t bytes) {
  TextCut cut;
  cut.text = ReplaceInvalidUtf8(std::string_view(pending_).substr(0, bytes));
  pending_.erase(0, bytes);
  unstoppable_ -= std::min(unstoppable_, bytes);
  searched_ -= std::min(searched_, bytes);
  size_t left = bytes;
  while (!token_bytes_.empty() && token_bytes_.front() <= left) {
    left -= token_bytes_.front();
    token_bytes_.pop_front();
    front_is_cut_ = false;
    ++cut.released_tokens;
  }
  if (left > 0) {
    token_bytes_.front() -= left;
    front_is_cut_ = true;
  }
  return cut;
}

TextCut TextCutter::Append(std::string_view token_bytes, bool may_stop) {
  pending_.append(token_bytes);
  token_bytes_.push_back(token_bytes.size());
  if (!may_stop) unstoppable_ = pending_.size();

  size_t stop_begin = 0;
  int32_t stop_index = -1;
  if (FindStop(&stop_begin, &stop_index)) {
    TextCut cut = Release(stop_begin);
    // The stop string begins inside a token whose first bytes were delivered: that token goes with
    // its text.
    if (front_is_cut_) ++cut.released_tokens;
    cut.stop_index = stop_index;
    pending_.clear();
    token_bytes_.clear();
    return cut;
  }
  const size_t held_for_stop = HeldForStop();
  searched_ = pending_.size() - held_for_stop;
  // A stop string that is not UTF-8 may begin inside a character, whose first bytes must then wait.
  const size_t incomplete = IncompleteUtf8Suffix(std::string_view(pending_).substr(0, searched_));
  return Release(searched_ - incomplete);
}

TextCut TextCutter::Flush() { return Release(pending_.size()); }

}  // namespace condense
