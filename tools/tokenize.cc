// `condense tokenize` and `condense detokenize`: text to token ids and back, from the model file.

#include <cstdio>
#include <memory>
#include <string>

#include "kernels/base/status_macros.h"
#include "tools/commands.h"
#include "tools/exit_code.h"
#include "tools/json_io.h"
#include "tools/local_model.h"

namespace condense {
namespace {

struct TokenizeFlags {
  std::string model_path;
  EncodeOptions encode;
  bool show_special = false;
};

absl::Status Tokenize(const TokenizeFlags& flags) {
  ASSIGN_OR_RETURN(const auto tokenizer, OpenTokenizer(flags.model_path));
  const std::vector<TokenId> ids = tokenizer->Encode(ReadStandardInput(), flags.encode);
  std::printf("%s\n", ToJsonText(nlohmann::ordered_json(ids), false).c_str());
  return absl::OkStatus();
}

absl::Status Detokenize(const TokenizeFlags& flags) {
  ASSIGN_OR_RETURN(const auto tokenizer, OpenTokenizer(flags.model_path));
  ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                   ParseTokenIds(ReadStandardInput(), tokenizer->vocab_size()));
  const std::string bytes = tokenizer->Decode(ids, flags.show_special);
  std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  return absl::OkStatus();
}

int ExitCodeOf(const absl::Status& status) {
  return status.ok() ? static_cast<int>(kExitOk) : Fail(status);
}

}  // namespace

void AddTokenize(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* tokenize =
      app->add_subcommand("tokenize", "Text on stdin to a JSON array of token ids");
  tokenize->add_option("MODEL", flags->model_path, "Model file (GGUF)")->required();
  tokenize->add_flag("--special", flags->encode.parse_special,
                     "Read special tokens as tokens, not as characters");
  tokenize->add_flag("--add_bos", flags->encode.add_bos,
                     "Add BOS (and EOS) where the model file asks for it");
  tokenize->footer(
      "The text is taken exactly, a newline at its end included.\n\n"
      "Example:\n"
      "  printf 'Hello world' | condense tokenize models/model.gguf");
  tokenize->callback([flags, exit_code] { *exit_code = ExitCodeOf(Tokenize(*flags)); });

  CLI::App* detokenize =
      app->add_subcommand("detokenize", "A JSON array of token ids on stdin to raw bytes");
  detokenize->add_option("MODEL", flags->model_path, "Model file (GGUF)")->required();
  detokenize->add_flag("--special", flags->show_special, "Show special tokens");
  detokenize->footer(
      "Example:\n"
      "  echo '[19556, 905]' | condense detokenize models/model.gguf");
  detokenize->callback([flags, exit_code] { *exit_code = ExitCodeOf(Detokenize(*flags)); });
}

}  // namespace condense
