#ifndef CONDENSE_ENGINE_TOKENIZER_STRING_TABLE_H_
#define CONDENSE_ENGINE_TOKENIZER_STRING_TABLE_H_

// Many short strings in one block of memory, found by their index.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace condense {

// Threads: immutable once filled. Views are valid as long as the table and survive a move of it,
// but not an Add that exceeds the bytes reserved.
class StringTable {
 public:
  void Reserve(size_t strings, size_t bytes) {
    ends_.reserve(strings + 1);
    bytes_.reserve(bytes);
  }
  void Add(std::string_view text) {
    bytes_.insert(bytes_.end(), text.begin(), text.end());
    ends_.push_back(bytes_.size());
  }
  size_t size() const { return ends_.size() - 1; }
  // REQUIRES: index < size().
  std::string_view operator[](size_t index) const {
    return {bytes_.data() + ends_[index], ends_[index + 1] - ends_[index]};
  }

 private:
  std::vector<char> bytes_;
  std::vector<size_t> ends_ = {0};
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_TOKENIZER_STRING_TABLE_H_
