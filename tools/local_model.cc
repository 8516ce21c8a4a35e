#include "tools/local_model.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace condense {

absl::StatusOr<std::unique_ptr<const Tokenizer>> OpenTokenizer(const std::string& model_path) {
  ASSIGN_OR_RETURN(const auto file, GgufFile::Open(model_path));
  return Tokenizer::Make(*file);
}

void LocalEngineFlags::AddTo(CLI::App* command) {
  command->add_option("MODEL", model_path, "Model file (GGUF)")->required();
  command->add_option("--threads", backend.num_threads, "CPU threads; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->group("Engine");
  command
      ->add_option("--cpu_isa", backend.cpu_isa,
                   "Instruction sets to use at most: auto, scalar, avx2, avx512vnni")
      ->capture_default_str()
      ->group("Engine");
  command->add_option("--step_tokens", step_tokens, "Token budget of one step")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str()
      ->group("Engine");
}

absl::StatusOr<std::unique_ptr<Engine>> LocalEngineFlags::MakeEngine(
    std::function<void()> on_published) const {
  EngineConfig config;
  config.model_path = model_path;
  config.backend = backend;
  config.step_tokens = step_tokens;
  config.compression = compression;
  config.on_published = std::move(on_published);
  return Engine::Make(std::move(config), /*metrics=*/nullptr);
}

}  // namespace condense
