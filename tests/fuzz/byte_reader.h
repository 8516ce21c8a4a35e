#ifndef CONDENSE_TESTS_FUZZ_BYTE_READER_H_
#define CONDENSE_TESTS_FUZZ_BYTE_READER_H_

// Reads a fuzzer's input as values; past its end everything is zero.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace condense {

class ByteReader {
 public:
  // REQUIRES: the bytes outlive the reader.
  ByteReader(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }

  template <typename T>
  T Take() {
    T value{};
    const size_t bytes = std::min(sizeof(T), size_);
    std::memcpy(&value, data_, bytes);
    Skip(bytes);
    return value;
  }

  // At most `size` bytes: fewer at the end.
  std::string TakeText(size_t size) {
    const size_t bytes = std::min(size, size_);
    std::string text(reinterpret_cast<const char*>(data_), bytes);
    Skip(bytes);
    return text;
  }

 private:
  void Skip(size_t bytes) {
    data_ += bytes;
    size_ -= bytes;
  }

  const uint8_t* data_;
  size_t size_;
};

}  // namespace condense

#endif  // CONDENSE_TESTS_FUZZ_BYTE_READER_H_
