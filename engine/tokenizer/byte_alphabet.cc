#include "engine/tokenizer/byte_alphabet.h"

#include "engine/utf8.h"

namespace condense {

const ByteAlphabet& ByteAlphabet::Get() {
  static const ByteAlphabet& alphabet = *new ByteAlphabet;
  return alphabet;
}

ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    const int code_point = printable ? byte : next++;
    bytes_[code_point] = static_cast<int16_t>(byte);
    if (code_point < 0x80) {
      characters_[byte] = std::string(1, static_cast<char>(code_point));
    } else {
      characters_[byte] = {static_cast<char>(0xc0 | code_point >> 6),
                           static_cast<char>(0x80 | (code_point & 0x3f))};
    }
  }
}

bool ByteAlphabet::ToBytes(std::string_view text, std::string* bytes) const {
  bytes->clear();
  while (!text.empty()) {
    const size_t size = Utf8CharacterSize(text);
    if (size != 1 && size != 2) return false;
    const int code_point = size == 1 ? text[0] : (text[0] & 0x1f) << 6 | (text[1] & 0x3f);
    if (code_point >= 512 || bytes_[code_point] < 0) return false;
    bytes->push_back(static_cast<char>(bytes_[code_point]));
    text.remove_prefix(size);
  }
  return true;
}

}  // namespace condense
