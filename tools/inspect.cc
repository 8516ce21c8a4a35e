// `condense inspect`: what is in a model file, and what it takes to run it.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/gguf.h"
#include "engine/model_config.h"
#include "engine/tensor_decoder.h"
#include "kernels/base/status_macros.h"
#include "tools/commands.h"
#include "tools/exit_code.h"
#include "tools/format.h"
#include "tools/json_io.h"
#include "tools/text_table.h"

namespace condense {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownElements = 6;
constexpr size_t kShownBytes = 72;

struct InspectFlags {
  std::string model_path;
  std::optional<int32_t> context;
  int32_t sequences = 1;
  int32_t block_tokens = 32;
  bool json = false;
};

// Element `index` of an array of fixed-size numbers.
template <typename T>
Json Element(const GgufArray& array, size_t index) {
  T value;
  std::memcpy(&value, array.data + index * sizeof(T), sizeof(T));
  return value;
}

Json ElementJson(const GgufArray& array, size_t index) {
  switch (array.element_type) {
    case GgufType::kUint8:
      return Element<uint8_t>(array, index);
    case GgufType::kInt8:
      return Element<int8_t>(array, index);
    case GgufType::kUint16:
      return Element<uint16_t>(array, index);
    case GgufType::kInt16:
      return Element<int16_t>(array, index);
    case GgufType::kUint32:
      return Element<uint32_t>(array, index);
    case GgufType::kInt32:
      return Element<int32_t>(array, index);
    case GgufType::kFloat32:
      return Element<float>(array, index);
    case GgufType::kUint64:
      return Element<uint64_t>(array, index);
    case GgufType::kInt64:
      return Element<int64_t>(array, index);
    case GgufType::kFloat64:
      return Element<double>(array, index);
    case GgufType::kBool:
      return Element<uint8_t>(array, index) != 0;
    case GgufType::kString:
      return std::string(array.strings[index]);
    case GgufType::kArray:
      return nullptr;
  }
  return nullptr;
}

// Arrays are cut to their first elements.
Json ValueJson(const GgufValue& value) {
  if (const auto* array = std::get_if<GgufArray>(&value.value)) {
    Json first = Json::array();
    const size_t shown = std::min<size_t>(array->size, kShownElements);
    for (size_t i = 0; i < shown; ++i) first.push_back(ElementJson(*array, i));
    return {{"element_type", GgufTypeName(array->element_type)},
            {"size", array->size},
            {"first", first}};
  }
  if (const auto* text = std::get_if<std::string_view>(&value.value)) return std::string(*text);
  if (const auto* number = std::get_if<double>(&value.value)) return *number;
  if (const auto* number = std::get_if<int64_t>(&value.value)) return *number;
  const uint64_t number = std::get<uint64_t>(value.value);
  if (value.type == GgufType::kBool) return number != 0;
  return number;
}

std::string ValueText(const GgufValue& value) {
  const Json json = ValueJson(value);
  if (!json.is_object()) {
    return OneLine(json.is_string() ? json.get<std::string>() : ToJsonText(json, false),
                   kShownBytes);
  }
  const auto& array = std::get<GgufArray>(value.value);
  std::string first = ToJsonText(json["first"], false);
  if (array.size > kShownElements) first.insert(first.size() - 1, ",\xe2\x80\xa6");
  return absl::StrFormat("%s %s", FormatCount(static_cast<int64_t>(array.size)),
                         OneLine(first, kShownBytes));
}

std::string TypeText(const GgufValue& value) {
  const auto* array = std::get_if<GgufArray>(&value.value);
  if (array == nullptr) return GgufTypeName(value.type);
  return absl::StrFormat("%s[]", GgufTypeName(array->element_type));
}

int64_t Elements(const GgufTensor& tensor) {
  int64_t elements = 1;
  for (const int64_t dim : tensor.dims) elements *= dim;
  return elements;
}

struct TypeSum {
  int64_t tensors = 0, elements = 0, bytes = 0;
};

std::map<std::string, TypeSum> SumByType(const GgufFile& file) {
  std::map<std::string, TypeSum> sums;
  for (const GgufTensor& tensor : file.tensors()) {
    TypeSum& sum = sums[TensorTypeName(tensor.type)];
    ++sum.tensors;
    sum.elements += Elements(tensor);
    sum.bytes += tensor.size_bytes;
  }
  return sums;
}

TypeSum Total(const std::map<std::string, TypeSum>& sums) {
  TypeSum total;
  for (const auto& [name, sum] : sums) {
    total.tensors += sum.tensors;
    total.elements += sum.elements;
    total.bytes += sum.bytes;
  }
  return total;
}

// Shape outermost first, as the project writes shapes.
std::vector<int64_t> Shape(const GgufTensor& tensor) {
  return {tensor.dims.rbegin(), tensor.dims.rend()};
}

// What it takes to run the model, in bytes.
struct Need {
  int64_t weight_bytes = 0;  // as kernels read them
  int64_t kv_bytes_per_token = 0;
  int64_t context = 0;
  int64_t sequences = 0;
  int64_t kv_bytes = 0;  // whole blocks of all sequences at full context
};

// One entry of one KV head: key and value, 16 bits each.
int64_t EntryBytes(const ModelConfig& config) { return int64_t{2} * 2 * config.head_dim; }

int64_t KvBytesOfSequence(const ModelConfig& config, int64_t context, int64_t block_tokens) {
  int64_t blocks = 0;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const int64_t window = config.window(layer);
    // A window slides over whole blocks: it may begin and end inside one.
    const int64_t tokens = window > 0 ? std::min(context, window + block_tokens) : context;
    blocks += config.num_kv_heads * ((tokens + block_tokens - 1) / block_tokens);
  }
  return blocks * block_tokens * EntryBytes(config);
}

int64_t WeightBytesInMemory(const GgufFile& file) {
  int64_t bytes = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    bytes += tensor.dims.size() == 2
                 ? WeightBytes(DecodedFormat(tensor.type), tensor.dims[1], tensor.dims[0])
                 : Elements(tensor) * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

Need NeedOf(const GgufFile& file, const ModelConfig& config, const InspectFlags& flags) {
  Need need{
      .weight_bytes = WeightBytesInMemory(file),
      .kv_bytes_per_token = EntryBytes(config) * config.num_kv_heads * config.num_layers,
      .context = flags.context.value_or(config.context_length),
      .sequences = flags.sequences,
  };
  need.kv_bytes = need.sequences * KvBytesOfSequence(config, need.context, flags.block_tokens);
  return need;
}

// The configuration, or why the engine cannot run a file that is otherwise sound.
struct Verdict {
  std::optional<ModelConfig> config;
  std::string obstacle;
};

absl::StatusOr<Verdict> Judge(const GgufFile& file) {
  auto config = ReadModelConfig(file);
  if (config.ok()) return Verdict{.config = *std::move(config)};
  if (!absl::IsUnimplemented(config.status())) return config.status();
  return Verdict{.obstacle = std::string(config.status().message())};
}

Json NeedJson(const Need& need) {
  return {{"kv_bytes_per_token_16bit", need.kv_bytes_per_token},
          {"context", need.context},
          {"sequences", need.sequences},
          {"kv_bytes", need.kv_bytes},
          {"weight_bytes", need.weight_bytes},
          {"total_bytes", need.kv_bytes + need.weight_bytes}};
}

Json ConfigJson(const ModelConfig& config) {
  return {{"architecture", config.architecture},
          {"num_layers", config.num_layers},
          {"embed", config.embed},
          {"num_heads", config.num_heads},
          {"num_kv_heads", config.num_kv_heads},
          {"head_dim", config.head_dim},
          {"feed_forward", config.feed_forward},
          {"vocab", config.vocab},
          {"context_length", config.context_length},
          {"sliding_window", config.sliding_window}};
}

Json InspectJson(const GgufFile& file, const Verdict& verdict, const std::optional<Need>& need) {
  Json metadata = Json::object();
  for (const auto& [key, value] : file.metadata()) metadata[key] = ValueJson(value);
  Json tensors = Json::array();
  for (const GgufTensor& tensor : file.tensors()) {
    tensors.push_back({{"name", tensor.name},
                       {"type", TensorTypeName(tensor.type)},
                       {"shape", Shape(tensor)},
                       {"bytes", tensor.size_bytes}});
  }
  Json out = {{"path", file.path()},
              {"bytes", file.size_bytes()},
              {"version", file.version()},
              {"parameters", Total(SumByType(file)).elements},
              {"runnable", verdict.config.has_value()}};
  if (verdict.config) out["config"] = ConfigJson(*verdict.config);
  if (!verdict.config) out["obstacle"] = verdict.obstacle;
  if (need) out["memory"] = NeedJson(*need);
  out["metadata"] = metadata;
  out["tensors"] = tensors;
  return out;
}

std::string MetadataTable(const GgufFile& file) {
  TextTable table({TextTable::Align::kLeft, TextTable::Align::kLeft});
  for (const auto& [key, value] : file.metadata()) {
    table.Add({OneLine(key, kShownBytes), TypeText(value), ValueText(value)});
  }
  return table.ToString(2);
}

std::string TensorTable(const GgufFile& file) {
  using Align = TextTable::Align;
  TextTable table({Align::kLeft, Align::kLeft, Align::kLeft, Align::kRight});
  for (const GgufTensor& tensor : file.tensors()) {
    std::string shape;
    for (const int64_t dim : Shape(tensor)) {
      shape += absl::StrFormat("%s%d", shape.empty() ? "" : ", ", dim);
    }
    table.Add({OneLine(tensor.name, kShownBytes), TensorTypeName(tensor.type), "[" + shape + "]",
               FormatBytes(tensor.size_bytes)});
  }
  return table.ToString(2);
}

std::string TypeTable(const std::map<std::string, TypeSum>& sums) {
  using Align = TextTable::Align;
  TextTable table({Align::kLeft, Align::kRight, Align::kRight, Align::kRight});
  table.Add({"type", "tensors", "weights", "bytes"});
  const auto add = [&table](const std::string& name, const TypeSum& sum) {
    table.Add({name, FormatCount(sum.tensors), FormatCount(sum.elements), FormatBytes(sum.bytes)});
  };
  for (const auto& [name, sum] : sums) add(name, sum);
  add("all", Total(sums));
  return table.ToString(2);
}

std::string NeedTable(const Need& need) {
  TextTable table({TextTable::Align::kLeft, TextTable::Align::kRight});
  table.Add({"weights", FormatBytes(need.weight_bytes), "as kernels read them"});
  table.Add({"cache per token", FormatBytes(need.kv_bytes_per_token), "in 16 bits"});
  table.Add({"cache", FormatBytes(need.kv_bytes),
             absl::StrFormat("%s sequences of %s tokens, in 16 bits", FormatCount(need.sequences),
                             FormatCount(need.context))});
  table.Add({"together", FormatBytes(need.weight_bytes + need.kv_bytes)});
  return table.ToString(2);
}

std::string InspectText(const GgufFile& file, const Verdict& verdict,
                        const std::optional<Need>& need) {
  std::string out = absl::StrFormat("%s\n  GGUF version %d, %s\n", file.path(), file.version(),
                                    FormatBytes(file.size_bytes()));
  out += "\nmetadata\n" + MetadataTable(file);
  out += "\ntensors\n" + TensorTable(file);
  out += "\nweights\n" + TypeTable(SumByType(file));
  if (need) out += "\nmemory\n" + NeedTable(*need);
  if (!verdict.config) out += "\nCondense cannot run this file: " + verdict.obstacle + "\n";
  return out;
}

absl::Status RunInspect(const InspectFlags& flags) {
  ASSIGN_OR_RETURN(const auto file, GgufFile::Open(flags.model_path));
  ASSIGN_OR_RETURN(const Verdict verdict, Judge(*file));
  std::optional<Need> need;
  if (verdict.config) need = NeedOf(*file, *verdict.config, flags);
  const std::string text = flags.json ? ToJsonText(InspectJson(*file, verdict, need), true) + "\n"
                                      : WithoutControls(InspectText(*file, verdict, need));
  std::fwrite(text.data(), 1, text.size(), stdout);
  return absl::OkStatus();
}

}  // namespace

void AddInspect(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = app->add_subcommand("inspect", "Show a model file and the memory it needs");
  command->add_option("MODEL", flags->model_path, "Model file (GGUF)")->required();
  command->add_option("--context", flags->context, "Tokens per sequence [as the model was trained]")
      ->check(CLI::Range(1, 1 << 24));
  command->add_option("--sequences", flags->sequences, "Sequences at the same time")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--block_tokens", flags->block_tokens, "Entries of a cache block")
      ->check(CLI::IsMember({32, 64}))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print JSON");
  command->footer(
      "Example:\n"
      "  condense inspect models/model.gguf --context 4096 --sequences 16");
  command->callback([flags, exit_code] {
    const absl::Status status = RunInspect(*flags);
    *exit_code = status.ok() ? static_cast<int>(kExitOk) : Fail(status);
  });
}

}  // namespace condense
