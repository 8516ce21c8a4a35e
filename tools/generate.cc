// `condense generate`: one request, its text on standard output as it is made.

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "tools/answer.h"
#include "tools/commands.h"
#include "tools/exit_code.h"
#include "tools/format.h"
#include "tools/generation_flags.h"
#include "tools/interrupt.h"
#include "tools/json_io.h"

namespace condense {
namespace {

constexpr absl::Duration kInterruptPoll = absl::Milliseconds(20);

struct GenerateFlags {
  ServerFlags server;
  GenerationFlags generation;
  std::optional<std::string> prompt;
  bool chat = false, text = false, ids = false;
  std::optional<std::string> system;
  bool parse_special = false;
  std::optional<std::string> request_id;
  std::optional<int32_t> logprobs;
  bool show_prompt = false, stats = false, json = false;
};

absl::StatusOr<std::string> PromptOf(const GenerateFlags& flags) {
  if (flags.prompt && *flags.prompt != "-") return *flags.prompt;
  if (isatty(STDIN_FILENO)) {
    return absl::InvalidArgumentError(
        "no prompt: give it as an argument or on standard input (see --help)");
  }
  std::string prompt = ReadStandardInput();
  // Of `echo ... | condense generate` the newline is not meant.
  if (!prompt.empty() && prompt.back() == '\n') prompt.pop_back();
  return prompt;
}

absl::StatusOr<v1::GenerateRequest> MakeRequest(const GenerateFlags& flags) {
  v1::GenerateRequest request;
  ASSIGN_OR_RETURN(const std::string prompt, PromptOf(flags));
  if (flags.ids) {
    ASSIGN_OR_RETURN(const std::vector<TokenId> ids, ParseTokenIds(prompt, 0));
    request.mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
  } else if (flags.chat || flags.system) {
    if (flags.system) {
      v1::ChatMessage* system = request.mutable_chat()->add_messages();
      system->set_role("system");
      system->set_content(*flags.system);
    }
    v1::ChatMessage* user = request.mutable_chat()->add_messages();
    user->set_role("user");
    user->set_content(prompt);
  } else {
    request.set_text(prompt);
    if (flags.parse_special) request.set_parse_special(true);
  }
  RETURN_IF_ERROR(flags.generation.Fill(&request));
  if (flags.request_id) request.set_request_id(*flags.request_id);
  if (flags.logprobs) request.mutable_output()->set_logprobs(*flags.logprobs);
  if (flags.show_prompt) request.mutable_output()->set_prompt(true);
  return request;
}

void PrintText(const std::string& text, bool to_terminal) {
  const std::string shown = to_terminal ? WithoutControls(text) : text;
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
}

// Streams; returns how the call ended, and CANCELLED with `interrupted` set after Ctrl-C.
absl::Status Stream(Client* client, const v1::GenerateRequest& request, const GenerateFlags& flags,
                    Answer* answer, bool* interrupted) {
  const bool to_terminal = isatty(STDOUT_FILENO) != 0;
  Interrupt interrupt;
  answer->started = absl::Now();
  const auto call =
      client->Generate(request, flags.generation.timeout(), [&](const v1::GenerateEvent& event) {
        answer->Add(event, absl::Now());
        if (flags.json || !event.has_tokens()) return;
        PrintText(event.tokens().text(), to_terminal);
      });
  while (!call->WaitFor(kInterruptPoll)) {
    if (!interrupt.Take()) continue;
    *interrupted = true;
    call->Cancel();
  }
  return call->status();
}

void PrintReport(const GenerateFlags& flags, const Answer& answer, const absl::Status& status) {
  if (flags.json) {
    std::printf("%s\n", ToJsonText(AnswerToJson(answer, status), true).c_str());
    return;
  }
  if (!answer.text.empty() && answer.text.back() != '\n') std::printf("\n");
  std::fflush(stdout);
  if (flags.show_prompt && !answer.prompt_token_ids.empty()) {
    std::fprintf(stderr, "prompt %s\n",
                 ToJsonText(nlohmann::ordered_json(answer.prompt_token_ids), false).c_str());
  }
  if (flags.logprobs) std::fputs(DescribeLogprobs(answer).c_str(), stderr);
  if (flags.stats && !answer.request_id.empty()) {
    std::fputs(DescribeAnswer(answer).c_str(), stderr);
  }
}

int RunGenerate(const GenerateFlags& flags) {
  const auto request = MakeRequest(flags);
  if (!request.ok()) return Fail(request.status());
  Answer answer;
  bool interrupted = false;
  absl::Status status;
  auto client = flags.server.Connect();
  if (client.ok()) {
    status = Stream(client->get(), *request, flags, &answer, &interrupted);
  } else {
    status = client.status();
  }
  PrintReport(flags, answer, status);
  if (interrupted) return kExitInterrupted;
  return status.ok() ? static_cast<int>(kExitOk) : Fail(status);
}

void AddInputFlags(CLI::App* command, GenerateFlags* flags) {
  command->add_option(
      "PROMPT", flags->prompt,
      "The prompt; without it, or with -, standard input less one newline at its end");
  auto* input =
      command->add_option_group("Input", "What the prompt is; without any of these: --text");
  input->add_flag("--chat", flags->chat, "A user message, rendered with the model's template");
  input->add_flag("--text", flags->text,
                  "Text to continue; BOS is added where the model asks for it");
  input->add_flag("--ids", flags->ids, "A JSON array of token ids, used as they are");
  input->require_option(0, 1);
  command->add_option("--system", flags->system, "System message; implies --chat");
  command->add_flag("--parse_special", flags->parse_special,
                    "Read special tokens in text as tokens, not as characters");
}

}  // namespace

void AddGenerate(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = app->add_subcommand("generate", "Send one prompt and stream the answer");
  AddInputFlags(command, flags.get());
  flags->generation.AddTo(command);
  flags->server.AddTo(command);
  command->add_option("--request_id", flags->request_id, "Name of the request in the server's logs")
      ->group("Server");
  const auto output = [&](CLI::Option* option) { option->group("Output"); };
  output(command->add_option("--logprobs", flags->logprobs,
                             "Show log-probabilities with this many alternatives, on stderr"));
  output(
      command->add_flag("--show_prompt", flags->show_prompt, "Show the prompt's ids, on stderr"));
  output(command->add_flag("--stats", flags->stats,
                           "Show tokens/s, time to first token and the receipt, on stderr"));
  output(command->add_flag("--json", flags->json, "One JSON object with everything, at the end"));
  command->footer(
      "Examples:\n"
      "  condense generate --chat \"What is the capital of France?\" --temperature 0 --stats\n"
      "  echo \"Once upon a time\" | condense generate --max_tokens 50 --seed 7\n"
      "  condense tokenize MODEL < prompt.txt | condense generate --ids --json\n\n"
      "Ctrl-C cancels the request and exits 130.");
  command->callback([flags, exit_code] {
    if (flags->system && (flags->text || flags->ids)) {
      *exit_code = Fail(absl::InvalidArgumentError("--system goes with --chat only"));
      return;
    }
    *exit_code = RunGenerate(*flags);
  });
}

}  // namespace condense
