#ifndef CONDENSE_ENGINE_TEXT_CUTTER_H_
#define CONDENSE_ENGINE_TEXT_CUTTER_H_

// Turns the bytes of generated tokens into deliverable text: whole UTF-8 characters, no stop
// string.

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace condense {

// What may be delivered now. Ids and text are cut at the same place: a token is released with its
// last byte.
struct TextCut {
  std::string text;             // valid UTF-8
  int32_t released_tokens = 0;  // of those appended and not yet released, oldest first
  int32_t stop_index = -1;      // >= 0: this stop string was completed; nothing follows
};

// Bytes are held back while they may be the beginning of a character or of a stop string. Bytes
// that can never become UTF-8 are replaced by U+FFFD, one for each maximal ill-formed part. After a
// stop string: the text ends before its first byte, and the tokens released are those that gave at
// least one byte to the delivered text (or none at all, before it). Threads: thread-compatible,
// owner is the engine thread. Cost: near-linear in bytes times stop strings.
class TextCutter {
 public:
  explicit TextCutter(std::vector<std::string> stop_strings)
      : stop_strings_(std::move(stop_strings)) {}

  // The bytes of the next token, possibly none. Stop strings are looked for only in bytes of tokens
  // that were appended with `may_stop`.
  TextCut Append(std::string_view token_bytes, bool may_stop);
  // Generation has ended without a stop string: everything held back is delivered.
  TextCut Flush();

 private:
  TextCut Release(size_t bytes);
  // Finds the earliest stop string in the pending bytes; false if none is complete.
  bool FindStop(size_t* begin, int32_t* index) const;
  // Bytes at the end of pending_ that are a proper prefix of a stop string.
  size_t HeldForStop() const;

  const std::vector<std::string> stop_strings_;
  std::string pending_;             // bytes not yet delivered
  std::deque<size_t> token_bytes_;  // bytes of each token not yet released that are still pending
  bool front_is_cut_ = false;       // the oldest of them has already given bytes to delivered text
  size_t unstoppable_ = 0;          // leading pending bytes in which no stop string may begin
  size_t searched_ = 0;             // leading pending bytes in which no stop string begins
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_TEXT_CUTTER_H_
