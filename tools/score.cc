// `condense score`: how likely a model finds given tokens, and how it would go on.

#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "tools/commands.h"
#include "tools/compression_flags.h"
#include "tools/exit_code.h"
#include "tools/json_io.h"
#include "tools/local_model.h"

namespace condense {
namespace {

struct ScoreFlags {
  LocalEngineFlags engine;
  CompressionFlags compression;
  int32_t greedy_tokens = 32;
};

struct Scores {
  std::vector<double> nll;  // of ids[i + 1] given ids[0..i], in nats
  std::vector<TokenId> greedy;
};

absl::StatusOr<Scores> Score(Engine* engine, std::vector<TokenId> ids, int32_t greedy_tokens) {
  Request request;
  request.id = "score";
  request.prompt = std::move(ids);
  request.sampling.temperature = 0.0f;
  request.stop.max_tokens = greedy_tokens;
  request.stop.ignore_eos = true;
  request.score = true;
  ASSIGN_OR_RETURN(const auto stream, engine->Submit(std::move(request)));
  Scores scores;
  while (const auto event = stream->Next()) {
    for (const TokenOutput& token : event->tokens) scores.greedy.push_back(token.token);
    if (event->kind != TokenEvent::Kind::kFinished) continue;
    RETURN_IF_ERROR(event->status);
    for (const float logprob : event->prompt_logprobs) scores.nll.push_back(-logprob);
  }
  return scores;
}

absl::Status RunScore(const ScoreFlags& flags) {
  // The input first: a malformed one is told before the model is loaded.
  ASSIGN_OR_RETURN(std::vector<TokenId> ids, ParseTokenIds(ReadStandardInput(), 0));
  LocalEngineFlags local = flags.engine;
  ASSIGN_OR_RETURN(local.compression, flags.compression.Make());
  ASSIGN_OR_RETURN(const auto engine, local.MakeEngine());
  ASSIGN_OR_RETURN(const Scores scores, Score(engine.get(), std::move(ids), flags.greedy_tokens));
  nlohmann::ordered_json out = {{"nll", scores.nll}, {"mean_nll", nullptr}};
  if (!scores.nll.empty()) {
    out["mean_nll"] = std::accumulate(scores.nll.begin(), scores.nll.end(), 0.0) /
                      static_cast<double>(scores.nll.size());
  }
  out["greedy"] = scores.greedy;
  std::printf("%s\n", ToJsonText(out, false).c_str());
  return absl::OkStatus();
}

}  // namespace

void AddScore(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App* command = app->add_subcommand(
      "score", "Log-likelihood of token ids on stdin, and a greedy continuation");
  flags->engine.AddTo(command);
  flags->compression.AddTo(command, "off");
  command->add_option("--greedy", flags->greedy_tokens, "Tokens to continue with")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->footer(
      "Prints {\"nll\": [...], \"mean_nll\": ..., \"greedy\": [...]}: nll[i] is minus the natural\n"
      "logarithm of the probability of token i + 1 after tokens 0 to i; mean_nll is null for a\n"
      "single token.\n\n"
      "Example:\n"
      "  condense tokenize MODEL < text.txt | condense score MODEL --threads 2");
  command->callback([flags, exit_code] {
    const absl::Status status = RunScore(*flags);
    *exit_code = status.ok() ? static_cast<int>(kExitOk) : Fail(status);
  });
}

}  // namespace condense
