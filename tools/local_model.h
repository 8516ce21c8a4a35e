#ifndef CONDENSE_TOOLS_LOCAL_MODEL_H_
#define CONDENSE_TOOLS_LOCAL_MODEL_H_

// A model file opened by the tool itself, without a server: its tokenizer, or an engine of its own.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/tokenizer/tokenizer.h"

namespace condense {

// The tokenizer does not need the file once it is made.
absl::StatusOr<std::unique_ptr<const Tokenizer>> OpenTokenizer(const std::string& model_path);

struct LocalEngineFlags {
  std::string model_path;
  BackendOptions backend;
  int32_t step_tokens = 512;
  Compression compression;  // of its requests; not a flag of its own, see CompressionFlags

  void AddTo(CLI::App* command);
  // `on_published`: see EngineConfig.
  absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(std::function<void()> on_published = {}) const;
};

}  // namespace condense

#endif  // CONDENSE_TOOLS_LOCAL_MODEL_H_
