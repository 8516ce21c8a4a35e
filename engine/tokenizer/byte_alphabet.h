#ifndef CONDENSE_ENGINE_TOKENIZER_BYTE_ALPHABET_H_
#define CONDENSE_ENGINE_TOKENIZER_BYTE_ALPHABET_H_

// The printable characters that byte-level vocabularies write for the 256 bytes.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace condense {

// Printable Latin-1 characters stand for themselves, the other bytes for U+0100 and following, in
// order. Threads: immutable; thread-safe.
class ByteAlphabet {
 public:
  static const ByteAlphabet& Get();

  const std::string& Character(uint8_t byte) const { return characters_[byte]; }
  // False, with `bytes` unspecified, if `text` has a character that stands for no byte.
  [[nodiscard]] bool ToBytes(std::string_view text, std::string* bytes) const;

 private:
  ByteAlphabet();

  std::array<std::string, 256> characters_;
  std::array<int16_t, 512> bytes_;  // by code point; -1: none
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_TOKENIZER_BYTE_ALPHABET_H_
