#include "engine/gguf_reader.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

static_assert(std::endian::native == std::endian::little,
              "GGUF values are read as they lie in memory");

constexpr char kMagic[] = "GGUF";
constexpr uint32_t kMinVersion = 2, kMaxVersion = 3;
// The least that a key-value pair and a tensor can take: they bound the counts in the header.
constexpr uint64_t kMinPairBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

constexpr TensorType kKnownTensorTypes[] = {TensorType::kF32,  TensorType::kF16,  TensorType::kBf16,
                                            TensorType::kQ4_0, TensorType::kQ4_1, TensorType::kQ5_0,
                                            TensorType::kQ5_1, TensorType::kQ8_0, TensorType::kQ4_K,
                                            TensorType::kQ5_K, TensorType::kQ6_K};

bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

template <typename T>
T Load(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

// REQUIRES: a fixed-size type and its bytes.
GgufValue FixedSizeValue(GgufType type, std::string_view bytes) {
  GgufValue result{type, {}};
  switch (type) {
    case GgufType::kBool:
    case GgufType::kUint8:
      result.value = static_cast<uint64_t>(Load<uint8_t>(bytes));
      break;
    case GgufType::kUint16:
      result.value = static_cast<uint64_t>(Load<uint16_t>(bytes));
      break;
    case GgufType::kUint32:
      result.value = static_cast<uint64_t>(Load<uint32_t>(bytes));
      break;
    case GgufType::kUint64:
      result.value = Load<uint64_t>(bytes);
      break;
    case GgufType::kInt8:
      result.value = static_cast<int64_t>(Load<int8_t>(bytes));
      break;
    case GgufType::kInt16:
      result.value = static_cast<int64_t>(Load<int16_t>(bytes));
      break;
    case GgufType::kInt32:
      result.value = static_cast<int64_t>(Load<int32_t>(bytes));
      break;
    case GgufType::kInt64:
      result.value = Load<int64_t>(bytes);
      break;
    case GgufType::kFloat32:
      result.value = static_cast<double>(Load<float>(bytes));
      break;
    case GgufType::kFloat64:
      result.value = Load<double>(bytes);
      break;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return result;
}

class GgufParser {
 public:
  GgufParser(const std::byte* data, size_t size, const std::string& name)
      : data_(data), size_(size), name_(name), cursor_(data, size) {}

  absl::StatusOr<GgufContents> Parse() {
    RETURN_IF_ERROR(ReadHeader());
    for (uint64_t i = 0; i < num_pairs_; ++i) RETURN_IF_ERROR(ReadPair(i));
    for (uint64_t i = 0; i < num_tensors_; ++i) RETURN_IF_ERROR(ReadTensorInfo(i));
    RETURN_IF_ERROR(PlaceTensors());
    RETURN_IF_ERROR(CheckOverlap());
    return std::move(contents_);
  }

 private:
  template <typename... Parts>
  absl::Status Malformed(const Parts&... parts) const {
    return absl::DataLossError(absl::StrCat(name_, ": ", parts...));
  }
  absl::Status Ends(const std::string& inside) const {
    return Malformed("the file ends inside ", inside, " (", size_, " bytes)");
  }

  absl::Status ReadHeader();
  absl::Status CheckVersion();
  absl::Status ReadPair(uint64_t index);
  absl::Status ReadName(const std::string& what, uint64_t limit, std::string* text);
  absl::Status ReadValue(const std::string& where, GgufType type, GgufValue* result);
  absl::Status ReadString(const std::string& where, std::string_view* text);
  absl::Status ReadArray(const std::string& where, GgufArray* array);
  absl::Status ReadTensorInfo(uint64_t index);
  absl::Status ReadDims(const std::string& where, GgufTensor* tensor);
  absl::Status ReadTensorType(const std::string& where, GgufTensor* tensor);
  absl::Status SetTensorBytes(const std::string& where, GgufTensor* tensor);
  absl::StatusOr<uint64_t> Alignment() const;
  absl::Status PlaceTensors();
  absl::Status CheckOverlap() const;

  const std::byte* const data_;
  const size_t size_;
  const std::string& name_;
  GgufCursor cursor_;
  uint64_t num_pairs_ = 0, num_tensors_ = 0;
  std::vector<uint64_t> offsets_;  // of each tensor, from the start of the data section
  GgufContents contents_;
};

absl::Status GgufParser::CheckVersion() {
  const uint32_t version = contents_.version;
  if (version >= kMinVersion && version <= kMaxVersion) return absl::OkStatus();
  const uint32_t swapped = __builtin_bswap32(version);
  if (swapped >= 1 && swapped <= kMaxVersion) {
    return Malformed("a big-endian GGUF file (version ", absl::Hex(version), "); not supported");
  }
  return Malformed("unsupported GGUF version ", version, "; known are 2 and 3");
}

absl::Status GgufParser::ReadHeader() {
  if (size_ == 0) return Malformed("the file is empty");
  std::string_view magic;
  if (!cursor_.ReadBytes(4, &magic)) return Ends("the header");
  if (magic != std::string_view(kMagic, 4)) {
    return Malformed("not a GGUF file: magic is ", QuotedForMessage(magic), ", expected \"GGUF\"");
  }
  if (!cursor_.Read(&contents_.version)) return Ends("the header");
  RETURN_IF_ERROR(CheckVersion());
  if (!cursor_.Read(&num_tensors_) || !cursor_.Read(&num_pairs_)) return Ends("the header");
  const uint64_t most_pairs = std::min(cursor_.remaining() / kMinPairBytes, kMaxGgufKeys);
  if (num_pairs_ > most_pairs) {
    return Malformed(num_pairs_, " key-value pairs announced; at most ", most_pairs, " can follow");
  }
  const uint64_t most_tensors = std::min(cursor_.remaining() / kMinTensorBytes, kMaxGgufTensors);
  if (num_tensors_ > most_tensors) {
    return Malformed(num_tensors_, " tensors announced; at most ", most_tensors, " can follow");
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ReadName(const std::string& what, uint64_t limit, std::string* text) {
  uint64_t length = 0;
  if (!cursor_.Read(&length)) return Ends(what);
  if (length == 0) return Malformed(what, ": the name is empty");
  std::string_view bytes;
  if (!cursor_.ReadBytes(length, &bytes)) {
    return Malformed(what, ": a name of ", length, " bytes; ", cursor_.remaining(),
                     " are left in the file");
  }
  if (length > limit) {
    return Malformed(what, " ", QuotedForMessage(bytes), ": a name of ", length,
                     " bytes; the limit is ", limit);
  }
  if (!IsPrintable(bytes)) {
    return Malformed(what, " ", QuotedForMessage(bytes), ": the name is not printable ASCII");
  }
  *text = std::string(bytes);
  return absl::OkStatus();
}

absl::Status GgufParser::ReadPair(uint64_t index) {
  std::string key;
  RETURN_IF_ERROR(
      ReadName(absl::StrCat("key ", index + 1, " of ", num_pairs_), kMaxGgufKeyBytes, &key));
  const std::string where = absl::StrCat("key ", QuotedForMessage(key));
  uint32_t type = 0;
  if (!cursor_.Read(&type)) return Ends(where);
  if (type > static_cast<uint32_t>(GgufType::kFloat64)) {
    return Malformed(where, ": unknown value type ", type, "; the last known is 12");
  }
  GgufValue value;
  RETURN_IF_ERROR(ReadValue(where, static_cast<GgufType>(type), &value));
  if (!contents_.metadata_index.emplace(key, contents_.metadata.size()).second) {
    return Malformed(where, " appears twice");
  }
  contents_.metadata.emplace_back(std::move(key), std::move(value));
  return absl::OkStatus();
}

absl::Status GgufParser::ReadString(const std::string& where, std::string_view* text) {
  uint64_t length = 0;
  if (!cursor_.Read(&length)) return Ends(where);
  if (cursor_.ReadBytes(length, text)) return absl::OkStatus();
  return Malformed(where, ": a string of ", length, " bytes; ", cursor_.remaining(),
                   " are left in the file");
}

absl::Status GgufParser::ReadValue(const std::string& where, GgufType type, GgufValue* result) {
  result->type = type;
  if (type == GgufType::kString) {
    std::string_view text;
    RETURN_IF_ERROR(ReadString(where, &text));
    result->value = text;
    return absl::OkStatus();
  }
  if (type == GgufType::kArray) {
    GgufArray array;
    RETURN_IF_ERROR(ReadArray(where, &array));
    result->value = std::move(array);
    return absl::OkStatus();
  }
  std::string_view bytes;
  if (!cursor_.ReadBytes(GgufElementBytes(type), &bytes)) return Ends(where);
  *result = FixedSizeValue(type, bytes);
  if (type == GgufType::kBool && std::get<uint64_t>(result->value) > 1) {
    return Malformed(where, ": a bool holds ", std::get<uint64_t>(result->value),
                     ", expected 0 or 1");
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ReadArray(const std::string& where, GgufArray* array) {
  uint32_t type = 0;
  if (!cursor_.Read(&type) || !cursor_.Read(&array->size)) return Ends(where);
  if (type > static_cast<uint32_t>(GgufType::kFloat64)) {
    return Malformed(where, ": unknown array element type ", type, "; the last known is 12");
  }
  array->element_type = static_cast<GgufType>(type);
  if (array->element_type == GgufType::kArray) {
    return Malformed(where, ": an array of arrays; nested arrays are not supported");
  }
  const bool strings = array->element_type == GgufType::kString;
  const size_t least_bytes = strings ? sizeof(uint64_t) : GgufElementBytes(array->element_type);
  if (array->size > cursor_.remaining() / least_bytes) {
    return Malformed(where, ": an array of ", array->size, " ", GgufTypeName(array->element_type),
                     " values; ", cursor_.remaining(), " bytes are left in the file");
  }
  array->data = cursor_.here();
  if (!strings) {
    std::string_view bytes;
    return cursor_.ReadBytes(array->size * least_bytes, &bytes) ? absl::OkStatus() : Ends(where);
  }
  array->strings.resize(array->size);
  for (std::string_view& text : array->strings) RETURN_IF_ERROR(ReadString(where, &text));
  return absl::OkStatus();
}

absl::Status GgufParser::ReadDims(const std::string& where, GgufTensor* tensor) {
  uint32_t num_dims = 0;
  if (!cursor_.Read(&num_dims)) return Ends(where);
  if (num_dims < 1 || num_dims > kMaxGgufDimensions) {
    return Malformed(where, ": ", num_dims, " dimensions; allowed are 1 to ", kMaxGgufDimensions);
  }
  tensor->dims.resize(num_dims);
  for (int64_t& dim : tensor->dims) {
    uint64_t size = 0;
    if (!cursor_.Read(&size)) return Ends(where);
    if (size < 1 || size > kMaxGgufDimension) {
      return Malformed(where, ": a dimension of ", size, "; allowed are 1 to ", kMaxGgufDimension);
    }
    dim = static_cast<int64_t>(size);
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ReadTensorType(const std::string& where, GgufTensor* tensor) {
  uint32_t type = 0;
  if (!cursor_.Read(&type)) return Ends(where);
  tensor->type = static_cast<TensorType>(type);
  const auto* end = std::end(kKnownTensorTypes);
  if (std::find(std::begin(kKnownTensorTypes), end, tensor->type) != end) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      name_, ": ", where, ": unknown tensor type ", type, "; known are ",
      absl::StrJoin(kKnownTensorTypes, ", ", [](std::string* out, TensorType known) {
        absl::StrAppend(out, TensorTypeName(known), " (", static_cast<uint32_t>(known), ")");
      })));
}

absl::Status GgufParser::SetTensorBytes(const std::string& where, GgufTensor* tensor) {
  const int64_t block_elements = TensorBlockElements(tensor->type);
  if (tensor->dims[0] % block_elements != 0) {
    return Malformed(where, ": ", TensorTypeName(tensor->type), " needs rows of a multiple of ",
                     block_elements, " elements, has ", tensor->dims[0]);
  }
  int64_t bytes = tensor->dims[0] / block_elements;
  bool fits = !__builtin_mul_overflow(bytes, TensorBlockBytes(tensor->type), &bytes);
  for (size_t i = 1; i < tensor->dims.size(); ++i) {
    fits = fits && !__builtin_mul_overflow(bytes, tensor->dims[i], &bytes);
  }
  if (!fits) {
    return Malformed(where, ": the bytes of shape [", absl::StrJoin(tensor->dims, ", "), "] of ",
                     TensorTypeName(tensor->type), " do not fit in 63 bits");
  }
  tensor->size_bytes = bytes;
  return absl::OkStatus();
}

absl::Status GgufParser::ReadTensorInfo(uint64_t index) {
  GgufTensor tensor;
  RETURN_IF_ERROR(ReadName(absl::StrCat("tensor ", index + 1, " of ", num_tensors_),
                           kMaxGgufTensorNameBytes, &tensor.name));
  const std::string where = absl::StrCat("tensor ", QuotedForMessage(tensor.name));
  RETURN_IF_ERROR(ReadDims(where, &tensor));
  RETURN_IF_ERROR(ReadTensorType(where, &tensor));
  RETURN_IF_ERROR(SetTensorBytes(where, &tensor));
  uint64_t offset = 0;
  if (!cursor_.Read(&offset)) return Ends(where);
  if (!contents_.tensor_index.emplace(tensor.name, contents_.tensors.size()).second) {
    return Malformed(where, " appears twice");
  }
  offsets_.push_back(offset);
  contents_.tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> GgufParser::Alignment() const {
  const auto found = contents_.metadata_index.find("general.alignment");
  if (found == contents_.metadata_index.end()) return kDefaultGgufAlignment;
  const GgufValue& value = contents_.metadata[found->second].second;
  if (value.type != GgufType::kUint32) {
    return Malformed("key \"general.alignment\" must be uint32, is ", GgufTypeName(value.type));
  }
  const uint64_t alignment = std::get<uint64_t>(value.value);
  if (!std::has_single_bit(alignment)) {
    return Malformed("key \"general.alignment\": ", alignment, " is not a power of two");
  }
  return alignment;
}

absl::Status GgufParser::PlaceTensors() {
  ASSIGN_OR_RETURN(const uint64_t alignment, Alignment());
  if (contents_.tensors.empty()) return absl::OkStatus();
  const uint64_t data_start = (cursor_.position() + alignment - 1) & ~(alignment - 1);
  if (data_start >= size_) {
    return Malformed("tensor data begins at byte ", data_start, " (general.alignment ", alignment,
                     "), but the file has ", size_, " bytes");
  }
  const uint64_t data_bytes = size_ - data_start;
  for (size_t i = 0; i < offsets_.size(); ++i) {
    GgufTensor& tensor = contents_.tensors[i];
    const uint64_t offset = offsets_[i], bytes = static_cast<uint64_t>(tensor.size_bytes);
    const std::string where = absl::StrCat("tensor ", QuotedForMessage(tensor.name));
    if (offset % alignment != 0) {
      return Malformed(where, ": offset ", offset, " is not a multiple of the alignment ",
                       alignment);
    }
    if (offset > data_bytes || bytes > data_bytes - offset) {
      return Malformed(where, ": ", bytes, " bytes at offset ", offset,
                       " lie beyond the end of the ", data_bytes, " bytes of tensor data");
    }
    tensor.data = data_ + data_start + offset;
  }
  return absl::OkStatus();
}

absl::Status GgufParser::CheckOverlap() const {
  std::vector<const GgufTensor*> by_place;
  for (const GgufTensor& tensor : contents_.tensors) by_place.push_back(&tensor);
  std::sort(by_place.begin(), by_place.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->data < b->data; });
  for (size_t i = 1; i < by_place.size(); ++i) {
    const GgufTensor& before = *by_place[i - 1];
    if (by_place[i]->data - before.data >= before.size_bytes) continue;
    return Malformed("tensors ", QuotedForMessage(before.name), " and ",
                     QuotedForMessage(by_place[i]->name), " overlap");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GgufContents> ParseGguf(const std::byte* data, size_t size,
                                       const std::string& name) {
  return GgufParser(data, size, name).Parse();
}

size_t GgufElementBytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

std::string QuotedForMessage(std::string_view text) {
  constexpr size_t kLongest = 80;
  const std::string_view shown = text.substr(0, kLongest);
  return absl::StrCat("\"", absl::CHexEscape(absl::string_view(shown.data(), shown.size())), "\"",
                      text.size() > kLongest ? "..." : "");
}

}  // namespace condense
