#ifndef CONDENSE_TESTS_SUPPORT_GGUF_WRITER_H_
#define CONDENSE_TESTS_SUPPORT_GGUF_WRITER_H_

// Builds GGUF bytes in memory, well-formed or broken on purpose: a file in pieces that tests change
// one by one.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/gguf.h"

namespace condense {

// Values as the file format has them.
std::string EncodeU32(uint32_t value);
std::string EncodeU64(uint64_t value);
std::string EncodeF32(float value);
std::string EncodeString(std::string_view text);
std::string EncodeArray(GgufType element, const std::vector<std::string>& items);
std::string EncodeStrings(const std::vector<std::string>& texts);

// Threads: thread-compatible. Nothing is checked: every field is written as it stands.
class GgufWriter {
 public:
  struct Pair {
    std::string key;
    uint32_t type = 0;
    std::string value;
  };
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;  // innermost first
    uint32_t type = 0;
    uint64_t offset = 0;               // from the start of the data section
    std::string bytes;                 // what Relayout places
    std::optional<uint32_t> num_dims;  // written instead of the number of dims
  };

  // Takes a file apart. REQUIRES: a well-formed file with alignment 32, its tensors' data in the
  // order of its list. A tensor's bytes include the padding behind it.
  static GgufWriter FromFile(const std::string& path);

  // Replaces the value of a key, or adds the key at the end.
  void Set(std::string_view key, GgufType type, std::string value);
  void Set(std::string_view key, uint32_t type, std::string value);
  void SetU32(std::string_view key, uint32_t value) {
    Set(key, GgufType::kUint32, EncodeU32(value));
  }
  void SetF32(std::string_view key, float value) { Set(key, GgufType::kFloat32, EncodeF32(value)); }
  void SetText(std::string_view key, std::string_view text) {
    Set(key, GgufType::kString, EncodeString(text));
  }
  void Remove(std::string_view key);
  // REQUIRES: the key holds an array of strings.
  std::vector<std::string> Texts(std::string_view key) const;

  // REQUIRES: there is such a tensor.
  Tensor& tensor(std::string_view name);
  void AddTensor(Tensor tensor) { tensors.push_back(std::move(tensor)); }
  void RemoveTensor(std::string_view name);
  // Overwrites bytes of a tensor in the data section.
  void Overwrite(std::string_view name, std::string_view bytes);
  // Lays the tensors' bytes out again one after another: sets every offset and `data`.
  void Relayout();

  // Header, pairs and tensor list: everything before the padding in front of the data.
  std::string Head() const;
  std::string Bytes() const;
  // Where the value list of a key, and the tensor list, begin in Bytes().
  size_t KeyPosition(std::string_view key) const;
  size_t TensorListPosition() const;

  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t alignment = 32;
  std::optional<uint64_t> num_pairs, num_tensors;  // announced instead of the true numbers
  std::vector<Pair> pairs;
  std::vector<Tensor> tensors;
  std::string data;  // the data section

 private:
  std::string HeaderAndPairs(size_t count) const;
};

}  // namespace condense

#endif  // CONDENSE_TESTS_SUPPORT_GGUF_WRITER_H_
