// `condense chat`: a conversation on the terminal.

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "tools/answer.h"
#include "tools/client.h"
#include "tools/commands.h"
#include "tools/exit_code.h"
#include "tools/format.h"
#include "tools/generation_flags.h"
#include "tools/interrupt.h"
#include "tools/line_reader.h"

namespace condense {
namespace {

constexpr absl::Duration kInterruptPoll = absl::Milliseconds(20);
constexpr char kChatCommands[] =
    "/reset   forget the conversation (the system message stays)\n"
    "/stats   speed, usage and cache of the last answer\n"
    "/help    this list\n"
    "/quit    leave; so does Ctrl-D\n"
    "Ctrl-C cancels an answer, or drops what you typed. A message that starts with / is written "
    "//.\n";

struct ChatFlags {
  ServerFlags server;
  GenerationFlags generation;
  std::string system;
};

// Threads: owned by the main thread; the answer is collected on gRPC's until its call has ended.
class Conversation {
 public:
  Conversation(Client* client, const ChatFlags& flags, bool interactive)
      : client_(client), flags_(flags), interactive_(interactive) {
    Reset();
  }

  void Reset() {
    chat_.Clear();
    if (!flags_.system.empty()) Append("system", flags_.system);
  }

  // Sends the conversation with `message` and prints the answer while it comes. What came of a
  // cancelled answer stays in the conversation; a failed request leaves it as it was.
  absl::Status Say(const std::string& message, Interrupt* interrupt) {
    const v1::Chat before = chat_;
    Append("user", message);
    v1::GenerateRequest request;
    RETURN_IF_ERROR(flags_.generation.Fill(&request));
    *request.mutable_chat() = chat_;
    bool cancelled = false;
    const absl::Status status = Stream(request, interrupt, &cancelled);
    if (!status.ok() && !cancelled) {
      chat_ = before;
      return status;
    }
    if (answer_.text.empty() && cancelled) {
      chat_ = before;
    } else {
      Append("assistant", answer_.text);
    }
    return absl::OkStatus();
  }

  std::string Stats() const {
    if (answer_.started == absl::Time()) return "nothing was said yet\n";
    return DescribeAnswer(answer_) + absl::StrFormat("messages %d\n", chat_.messages_size());
  }

 private:
  void Append(const std::string& role, const std::string& content) {
    v1::ChatMessage* message = chat_.add_messages();
    message->set_role(role);
    message->set_content(content);
  }

  absl::Status Stream(const v1::GenerateRequest& request, Interrupt* interrupt, bool* cancelled) {
    answer_ = Answer();
    answer_.started = absl::Now();
    interrupt->Take();  // a Ctrl-C from before is not meant for this answer
    const auto call = client_->Generate(request, flags_.generation.timeout(),
                                        [this](const v1::GenerateEvent& event) { Show(event); });
    while (!call->WaitFor(kInterruptPoll)) {
      if (!interrupt->Take()) continue;
      *cancelled = true;
      call->Cancel();
    }
    const absl::Status status = call->status();
    *cancelled = *cancelled && !status.ok();
    if (*cancelled) std::fputs(interactive_ ? " [cancelled]" : "", stdout);
    if (status.ok() || *cancelled || !answer_.text.empty()) std::fputs("\n", stdout);
    std::fflush(stdout);
    return status;
  }

  void Show(const v1::GenerateEvent& event) {
    answer_.Add(event, absl::Now());
    if (!event.has_tokens()) return;
    const std::string& text = event.tokens().text();
    std::fputs(interactive_ ? WithoutControls(text).c_str() : text.c_str(), stdout);
    std::fflush(stdout);
  }

  Client* const client_;
  const ChatFlags& flags_;
  const bool interactive_;
  v1::Chat chat_;
  Answer answer_;
};

enum class Next { kGoOn, kLeave };

// A line that starts with one slash.
Next Obey(const std::string& line, Conversation* conversation) {
  const std::string command = line.substr(0, line.find_last_not_of(" \t") + 1);
  if (command == "/quit" || command == "/exit") return Next::kLeave;
  if (command == "/reset") {
    conversation->Reset();
    std::puts("The conversation starts anew.");
  } else if (command == "/stats") {
    std::fputs(conversation->Stats().c_str(), stdout);
  } else if (command == "/help") {
    std::fputs(kChatCommands, stdout);
  } else {
    std::printf("Unknown command %s\n%s", OneLine(command, 40).c_str(), kChatCommands);
  }
  std::fflush(stdout);
  return Next::kGoOn;
}

int Talk(Conversation* conversation, LineReader* reader, Interrupt* interrupt) {
  std::string line;
  int exit_code = kExitOk;
  while (true) {
    const LineReader::Result result = reader->Read("> ", &line);
    if (result == LineReader::Result::kInterrupted) {
      if (!reader->interactive()) return kExitInterrupted;
      continue;
    }
    if (result == LineReader::Result::kEnd) {
      if (reader->interactive()) std::puts("");
      return exit_code;
    }
    if (line.find_first_not_of(" \t\r\n") == std::string::npos) continue;
    if (line[0] == '/' && line.rfind("//", 0) != 0) {
      if (Obey(line, conversation) == Next::kLeave) return exit_code;
      continue;
    }
    if (line[0] == '/') line.erase(0, 1);
    const absl::Status status = conversation->Say(line, interrupt);
    if (status.ok()) continue;
    const int code = Fail(status);
    // A person reads the message and goes on; a script's code tells of the last failure.
    if (!reader->interactive()) exit_code = code;
  }
}

int RunChat(const ChatFlags& flags) {
  v1::GenerateRequest checked;
  const absl::Status valid = flags.generation.Fill(&checked);
  if (!valid.ok()) return Fail(valid);
  const auto client = flags.server.Connect();
  if (!client.ok()) return Fail(client.status());
  const auto model = (*client)->ModelInfo();
  if (!model.ok()) return Fail(model.status());
  if (model->chat_template_family().empty()) {
    return Fail(absl::FailedPreconditionError(absl::StrFormat(
        "model %s has no chat template that the server knows; use condense generate --text",
        model->name())));
  }
  Interrupt interrupt;
  const auto reader = LineReader::Make(&interrupt);
  if (reader->interactive()) {
    std::printf("Talking to %s at %s. /help lists the commands.\n",
                WithoutControls(model->name()).c_str(), flags.server.address.c_str());
  }
  Conversation conversation(client->get(), flags, reader->interactive());
  return Talk(&conversation, reader.get(), &interrupt);
}

}  // namespace

void AddChat(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command = app->add_subcommand("chat", "Talk with the model, answers streamed");
  command->add_option("--system", flags->system, "System message that opens the conversation");
  flags->generation.AddTo(command);
  flags->server.AddTo(command);
  command->footer(std::string("In the conversation:\n") + kChatCommands +
                  "Without a terminal, each line of standard input is a message or a command.\n\n"
                  "Example:\n"
                  "  condense chat --system \"You answer in one sentence.\" --temperature 0.7");
  command->callback([flags, exit_code] { *exit_code = RunChat(*flags); });
}

}  // namespace condense
