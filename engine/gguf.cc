#include "engine/gguf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/gguf_reader.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

struct TensorTypeRow {
  TensorType type;
  const char* name;
  int64_t block_elements;
  int64_t block_bytes;
};
constexpr TensorTypeRow kTensorTypes[] = {
    {TensorType::kF32, "F32", 1, 4},       {TensorType::kF16, "F16", 1, 2},
    {TensorType::kBf16, "BF16", 1, 2},     {TensorType::kQ4_0, "Q4_0", 32, 18},
    {TensorType::kQ4_1, "Q4_1", 32, 20},   {TensorType::kQ5_0, "Q5_0", 32, 22},
    {TensorType::kQ5_1, "Q5_1", 32, 24},   {TensorType::kQ8_0, "Q8_0", 32, 34},
    {TensorType::kQ4_K, "Q4_K", 256, 144}, {TensorType::kQ5_K, "Q5_K", 256, 176},
    {TensorType::kQ6_K, "Q6_K", 256, 210},
};

const TensorTypeRow& TensorTypeOf(TensorType type) {
  for (const TensorTypeRow& row : kTensorTypes) {
    if (row.type == type) return row;
  }
  CheckFailed(__FILE__, __LINE__, absl::StrCat("tensor type ", static_cast<uint32_t>(type)));
}

absl::Status PathError(const std::string& path, int error) {
  const std::string message = absl::StrCat(path, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
  return absl::InvalidArgumentError(message);
}

// Closes the descriptor of a file that is mapped or refused.
class FileDescriptor {
 public:
  explicit FileDescriptor(int id) : id_(id) {}
  ~FileDescriptor() {
    if (id_ >= 0) close(id_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int id() const { return id_; }

 private:
  const int id_;
};

absl::Status WrongType(const std::string& path, std::string_view key, const char* expected,
                       const GgufValue& value) {
  std::string is = GgufTypeName(value.type);
  if (const auto* array = std::get_if<GgufArray>(&value.value)) {
    absl::StrAppend(&is, " of ", GgufTypeName(array->element_type));
  }
  return absl::DataLossError(
      absl::StrFormat("%s: key %s must be %s, is %s", path, QuotedForMessage(key), expected, is));
}

absl::Status MissingKey(const std::string& path, std::string_view key) {
  return absl::DataLossError(absl::StrFormat("%s: key %s is missing", path, QuotedForMessage(key)));
}

template <typename T>
absl::Status OutOfRange(const std::string& path, std::string_view key, T value, double low,
                        double high) {
  return absl::DataLossError(absl::StrFormat("%s: key %s: %s is outside [%.15g, %.15g]", path,
                                             QuotedForMessage(key), absl::StrCat(value), low,
                                             high));
}

bool IsInteger(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kUint16:
    case GgufType::kUint32:
    case GgufType::kUint64:
    case GgufType::kInt8:
    case GgufType::kInt16:
    case GgufType::kInt32:
    case GgufType::kInt64:
      return true;
    default:
      return false;
  }
}

template <typename T>
T LoadElement(const GgufArray& array, uint64_t index) {
  T value;
  std::memcpy(&value, array.data + index * sizeof(T), sizeof(T));
  return value;
}

template <typename Element, typename T>
std::vector<T> LoadAll(const GgufArray& array) {
  std::vector<T> values(array.size);
  for (uint64_t i = 0; i < array.size; ++i)
    values[i] = static_cast<T>(LoadElement<Element>(array, i));
  return values;
}

}  // namespace

const char* GgufTypeName(GgufType type) {
  constexpr const char* kNames[] = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                    "int32",  "float32", "bool",   "string", "array",
                                    "uint64", "int64",   "float64"};
  const auto index = static_cast<size_t>(type);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

int64_t TensorBlockElements(TensorType type) { return TensorTypeOf(type).block_elements; }
int64_t TensorBlockBytes(TensorType type) { return TensorTypeOf(type).block_bytes; }
const char* TensorTypeName(TensorType type) { return TensorTypeOf(type).name; }

absl::StatusOr<std::unique_ptr<const GgufFile>> GgufFile::Open(const std::string& path) {
  // Without O_NONBLOCK a named pipe would block here for ever; regular files ignore it.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info;
  if (file.id() < 0 || fstat(file.id(), &info) != 0) return PathError(path, errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) return Parse(nullptr, 0, path);
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.id(), 0);
  if (mapping == MAP_FAILED) return PathError(path, errno);
  std::unique_ptr<GgufFile> result(new GgufFile);
  result->data_ = static_cast<const std::byte*>(mapping);
  result->size_ = size;
  result->mapped_ = true;
  RETURN_IF_ERROR(result->Fill(path));
  return result;
}

absl::StatusOr<std::unique_ptr<const GgufFile>> GgufFile::Parse(const std::byte* data, size_t size,
                                                                std::string name) {
  std::unique_ptr<GgufFile> result(new GgufFile);
  result->data_ = data;
  result->size_ = size;
  RETURN_IF_ERROR(result->Fill(std::move(name)));
  return result;
}

absl::Status GgufFile::Fill(std::string name) {
  path_ = std::move(name);
  ASSIGN_OR_RETURN(GgufContents contents, ParseGguf(data_, size_, path_));
  version_ = contents.version;
  metadata_ = std::move(contents.metadata);
  tensors_ = std::move(contents.tensors);
  metadata_index_ = std::move(contents.metadata_index);
  tensor_index_ = std::move(contents.tensor_index);
  return absl::OkStatus();
}

GgufFile::~GgufFile() {
  if (mapped_) munmap(const_cast<std::byte*>(data_), size_);
}

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto found = metadata_index_.find(std::string(key));
  return found == metadata_index_.end() ? nullptr : &metadata_[found->second].second;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = tensor_index_.find(std::string(name));
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

absl::StatusOr<int64_t> GgufFile::Int(std::string_view key, int64_t low, int64_t high) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return MissingKey(path_, key);
  if (!IsInteger(value->type)) return WrongType(path_, key, "an integer", *value);
  if (const auto* number = std::get_if<uint64_t>(&value->value)) {
    if (std::cmp_less(*number, low) || std::cmp_greater(*number, high)) {
      return OutOfRange(path_, key, *number, low, high);
    }
    return static_cast<int64_t>(*number);
  }
  const int64_t number = std::get<int64_t>(value->value);
  if (number < low || number > high) return OutOfRange(path_, key, number, low, high);
  return number;
}

absl::StatusOr<int64_t> GgufFile::IntOr(std::string_view key, int64_t low, int64_t high,
                                        int64_t otherwise) const {
  if (Find(key) == nullptr) return otherwise;
  return Int(key, low, high);
}

absl::StatusOr<double> GgufFile::Float(std::string_view key, double low, double high) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return MissingKey(path_, key);
  if (value->type != GgufType::kFloat32 && value->type != GgufType::kFloat64) {
    return WrongType(path_, key, "a float", *value);
  }
  const double number = std::get<double>(value->value);
  // Written so that NaN fails.
  if (!(number >= low && number <= high)) return OutOfRange(path_, key, number, low, high);
  return number;
}

absl::StatusOr<double> GgufFile::FloatOr(std::string_view key, double low, double high,
                                         double otherwise) const {
  if (Find(key) == nullptr) return otherwise;
  return Float(key, low, high);
}

absl::StatusOr<bool> GgufFile::BoolOr(std::string_view key, bool otherwise) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return otherwise;
  if (value->type != GgufType::kBool) return WrongType(path_, key, "a bool", *value);
  return std::get<uint64_t>(value->value) != 0;
}

absl::StatusOr<std::string> GgufFile::String(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return MissingKey(path_, key);
  if (value->type != GgufType::kString) return WrongType(path_, key, "a string", *value);
  return std::string(std::get<std::string_view>(value->value));
}

absl::StatusOr<std::string> GgufFile::StringOr(std::string_view key,
                                               std::string_view otherwise) const {
  if (Find(key) == nullptr) return std::string(otherwise);
  return String(key);
}

absl::StatusOr<const std::vector<std::string_view>*> GgufFile::Strings(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return MissingKey(path_, key);
  const auto* array = std::get_if<GgufArray>(&value->value);
  if (array == nullptr || array->element_type != GgufType::kString) {
    return WrongType(path_, key, "an array of strings", *value);
  }
  return &array->strings;
}

absl::StatusOr<std::vector<float>> GgufFile::Floats(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return MissingKey(path_, key);
  const auto* array = std::get_if<GgufArray>(&value->value);
  if (array != nullptr && array->element_type == GgufType::kFloat32)
    return LoadAll<float, float>(*array);
  if (array != nullptr && array->element_type == GgufType::kFloat64)
    return LoadAll<double, float>(*array);
  return WrongType(path_, key, "an array of floats", *value);
}

absl::StatusOr<std::vector<int64_t>> GgufFile::Ints(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return MissingKey(path_, key);
  const auto* array = std::get_if<GgufArray>(&value->value);
  if (array == nullptr) return WrongType(path_, key, "an array of integers", *value);
  switch (array->element_type) {
    case GgufType::kUint8:
      return LoadAll<uint8_t, int64_t>(*array);
    case GgufType::kInt8:
      return LoadAll<int8_t, int64_t>(*array);
    case GgufType::kUint16:
      return LoadAll<uint16_t, int64_t>(*array);
    case GgufType::kInt16:
      return LoadAll<int16_t, int64_t>(*array);
    case GgufType::kUint32:
      return LoadAll<uint32_t, int64_t>(*array);
    case GgufType::kInt32:
      return LoadAll<int32_t, int64_t>(*array);
    case GgufType::kInt64:
      return LoadAll<int64_t, int64_t>(*array);
    default:  // uint64 arrays do not fit and are not in use
      return WrongType(path_, key, "an array of integers of at most 63 bits", *value);
  }
}

}  // namespace condense
