#ifndef CONDENSE_ENGINE_UTF8_H_
#define CONDENSE_ENGINE_UTF8_H_

// Where UTF-8 characters begin and end in bytes that may be anything.

#include <cstddef>
#include <string>
#include <string_view>

namespace condense {

// Bytes of the well-formed character at the start of `text`; 0 if there is none (no overlong forms,
// no surrogates, nothing above U+10FFFF) or `text` is empty.
inline size_t Utf8CharacterSize(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const size_t size = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;
  if (lead == 0xed && byte(1) > 0x9f) return 0;
  if (lead == 0xf0 && byte(1) < 0x90) return 0;
  if (lead == 0xf4 && byte(1) > 0x8f) return 0;
  return size;
}

// Bytes at the end of `bytes` that are the beginning of a well-formed character and not yet all of
// it: 0..3.
size_t IncompleteUtf8Suffix(std::string_view bytes);
// `bytes` with U+FFFD in place of each maximal ill-formed part. A well-formed input comes back
// unchanged.
std::string ReplaceInvalidUtf8(std::string_view bytes);
bool IsValidUtf8(std::string_view bytes);

}  // namespace condense

#endif  // CONDENSE_ENGINE_UTF8_H_
