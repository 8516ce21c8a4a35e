#include "tests/support/gguf_writer.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "kernels/base/check.h"

namespace condense {
namespace {

template <typename T>
std::string EncodeNumber(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

// Reads a file that is known to be well-formed: the counterpart of the writer, and no part of what
// is tested.
class Slicer {
 public:
  explicit Slicer(std::string bytes) : bytes_(std::move(bytes)) {}

  uint64_t Number(size_t num_bytes) {
    uint64_t value = 0;
    std::memcpy(&value, Take(num_bytes).data(), num_bytes);
    return value;
  }
  std::string Take(uint64_t num_bytes) {
    CHECK_LE(position_ + num_bytes, bytes_.size());
    position_ += num_bytes;
    return bytes_.substr(position_ - num_bytes, num_bytes);
  }
  std::string Text() { return Take(Number(8)); }
  // The bytes of a value, whatever they mean.
  std::string Value(uint32_t type) {
    const size_t begin = position_;
    Skip(static_cast<GgufType>(type));
    return bytes_.substr(begin, position_ - begin);
  }
  std::string Rest(uint64_t alignment) const {
    return bytes_.substr((position_ + alignment - 1) / alignment * alignment);
  }

 private:
  void Skip(GgufType type) {
    constexpr size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == GgufType::kString) {
      Text();
    } else if (type == GgufType::kArray) {
      const auto element = static_cast<GgufType>(Number(4));
      for (uint64_t left = Number(8); left > 0; --left) Skip(element);
    } else {
      Take(kSizes[static_cast<size_t>(type)]);
    }
  }

  const std::string bytes_;
  size_t position_ = 0;
};

std::string ReadWholeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void PadTo(uint64_t alignment, std::string* bytes) {
  bytes->append((alignment - bytes->size() % alignment) % alignment, '\0');
}

}  // namespace

std::string EncodeU32(uint32_t value) { return EncodeNumber(value); }
std::string EncodeU64(uint64_t value) { return EncodeNumber(value); }
std::string EncodeF32(float value) { return EncodeNumber(value); }

std::string EncodeString(std::string_view text) {
  return EncodeU64(text.size()) + std::string(text);
}

std::string EncodeArray(GgufType element, const std::vector<std::string>& items) {
  std::string bytes = EncodeU32(static_cast<uint32_t>(element)) + EncodeU64(items.size());
  for (const std::string& item : items) bytes += item;
  return bytes;
}

std::string EncodeStrings(const std::vector<std::string>& texts) {
  std::vector<std::string> items;
  for (const std::string& text : texts) items.push_back(EncodeString(text));
  return EncodeArray(GgufType::kString, items);
}

GgufWriter GgufWriter::FromFile(const std::string& path) {
  GgufWriter writer;
  Slicer slicer(ReadWholeFile(path));
  writer.magic = slicer.Take(4);
  writer.version = static_cast<uint32_t>(slicer.Number(4));
  const uint64_t num_tensors = slicer.Number(8), num_pairs = slicer.Number(8);
  for (uint64_t i = 0; i < num_pairs; ++i) {
    std::string key = slicer.Text();
    const auto type = static_cast<uint32_t>(slicer.Number(4));
    writer.pairs.push_back({std::move(key), type, slicer.Value(type)});
  }
  for (uint64_t i = 0; i < num_tensors; ++i) {
    Tensor tensor;
    tensor.name = slicer.Text();
    tensor.dims.resize(slicer.Number(4));
    for (uint64_t& dim : tensor.dims) dim = slicer.Number(8);
    tensor.type = static_cast<uint32_t>(slicer.Number(4));
    tensor.offset = slicer.Number(8);
    writer.tensors.push_back(std::move(tensor));
  }
  writer.data = slicer.Rest(writer.alignment);
  for (size_t i = 0; i < writer.tensors.size(); ++i) {
    const uint64_t begin = writer.tensors[i].offset;
    const bool last = i + 1 == writer.tensors.size();
    writer.tensors[i].bytes =
        writer.data.substr(begin, last ? std::string::npos : writer.tensors[i + 1].offset - begin);
  }
  return writer;
}

void GgufWriter::Set(std::string_view key, GgufType type, std::string value) {
  Set(key, static_cast<uint32_t>(type), std::move(value));
}

void GgufWriter::Set(std::string_view key, uint32_t type, std::string value) {
  for (Pair& pair : pairs) {
    if (pair.key != key) continue;
    pair.type = type;
    pair.value = std::move(value);
    return;
  }
  pairs.push_back({std::string(key), type, std::move(value)});
}

void GgufWriter::Remove(std::string_view key) {
  CHECK_EQ(std::erase_if(pairs, [key](const Pair& pair) { return pair.key == key; }), 1u);
}

std::vector<std::string> GgufWriter::Texts(std::string_view key) const {
  for (const Pair& pair : pairs) {
    if (pair.key != key) continue;
    std::vector<std::string> texts;
    for (size_t at = 12; at < pair.value.size(); at += texts.back().size()) {
      uint64_t length;
      std::memcpy(&length, pair.value.data() + at, sizeof(length));
      at += sizeof(length);
      texts.push_back(pair.value.substr(at, length));
    }
    return texts;
  }
  CheckFailed(__FILE__, __LINE__, std::string(key));
}

GgufWriter::Tensor& GgufWriter::tensor(std::string_view name) {
  for (Tensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  CheckFailed(__FILE__, __LINE__, std::string(name));
}

void GgufWriter::RemoveTensor(std::string_view name) {
  CHECK_EQ(std::erase_if(tensors, [name](const Tensor& tensor) { return tensor.name == name; }),
           1u);
}

void GgufWriter::Overwrite(std::string_view name, std::string_view bytes) {
  data.replace(tensor(name).offset, bytes.size(), bytes);
}

void GgufWriter::Relayout() {
  data.clear();
  for (Tensor& tensor : tensors) {
    tensor.offset = data.size();
    data += tensor.bytes;
    PadTo(alignment, &data);
  }
}

std::string GgufWriter::HeaderAndPairs(size_t count) const {
  std::string bytes = magic + EncodeU32(version) + EncodeU64(num_tensors.value_or(tensors.size())) +
                      EncodeU64(num_pairs.value_or(pairs.size()));
  for (size_t i = 0; i < count; ++i) {
    bytes += EncodeString(pairs[i].key) + EncodeU32(pairs[i].type) + pairs[i].value;
  }
  return bytes;
}

size_t GgufWriter::KeyPosition(std::string_view key) const {
  const auto found =
      std::find_if(pairs.begin(), pairs.end(), [key](const Pair& pair) { return pair.key == key; });
  CHECK(found != pairs.end());
  return HeaderAndPairs(found - pairs.begin()).size();
}

size_t GgufWriter::TensorListPosition() const { return HeaderAndPairs(pairs.size()).size(); }

std::string GgufWriter::Head() const {
  std::string bytes = HeaderAndPairs(pairs.size());
  for (const Tensor& tensor : tensors) {
    bytes += EncodeString(tensor.name);
    bytes += EncodeU32(tensor.num_dims.value_or(static_cast<uint32_t>(tensor.dims.size())));
    for (const uint64_t dim : tensor.dims) bytes += EncodeU64(dim);
    bytes += EncodeU32(tensor.type) + EncodeU64(tensor.offset);
  }
  return bytes;
}

std::string GgufWriter::Bytes() const {
  std::string bytes = Head();
  PadTo(alignment, &bytes);
  return bytes + data;
}

}  // namespace condense
