// `condense compression`: how a server compacts its cache, and how it is to.

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "tools/answer.h"
#include "tools/commands.h"
#include "tools/compression_flags.h"
#include "tools/exit_code.h"
#include "tools/format.h"
#include "tools/generation_flags.h"
#include "tools/json_io.h"
#include "tools/server_status.h"
#include "tools/text_table.h"

namespace condense {
namespace {

using Json = nlohmann::ordered_json;

struct CompressionCommandFlags {
  ServerFlags server;
  CompressionFlags compression;
  bool pause = false, resume = false;
  std::optional<std::string> mode;
  bool json = false;
};

bool ChangesAnything(const CompressionCommandFlags& flags) {
  return flags.compression.given() || flags.pause || flags.resume || flags.mode.has_value();
}

absl::StatusOr<v1::CompressionState> Ask(const CompressionCommandFlags& flags) {
  ASSIGN_OR_RETURN(const auto client, flags.server.Connect());
  if (!ChangesAnything(flags)) {
    ASSIGN_OR_RETURN(v1::GetCompressionResponse response, client->GetCompression());
    return response.state();
  }
  v1::SetCompressionRequest request;
  if (flags.compression.given()) *request.mutable_compression() = flags.compression.ToMessage();
  if (flags.pause || flags.resume) request.set_paused(flags.pause);
  if (flags.mode.has_value()) request.set_mode(*flags.mode);
  ASSIGN_OR_RETURN(v1::SetCompressionResponse response, client->SetCompression(request));
  return response.state();
}

Json StateJson(const v1::CompressionState& state) {
  Json formats = Json::array();
  for (const std::string& format : state.formats()) formats.push_back(format);
  return {{"preset", state.preset()},
          {"policy", state.policy()},
          {"ratio", state.ratio()},
          {"formats", formats},
          {"paused", state.paused()},
          {"mode", state.mode()},
          {"mode_reason", state.mode_reason()},
          {"bytes_held", state.bytes_held()},
          {"bytes_16bit", state.bytes_16bit()},
          {"ratio_held", state.ratio_held()},
          {"staging_bytes", state.staging_bytes()},
          {"slack_bytes", state.slack_bytes()},
          {"jobs_out", state.jobs_out()},
          {"swaps", SwapsToJson(state.swaps())}};
}

// A pause comes first, whatever reason the guard has.
std::string Reason(const v1::CompressionState& state) {
  if (!state.paused()) return state.mode_reason();
  const std::string pause = "compaction is paused";
  return state.mode_reason().empty() ? pause : pause + "; " + state.mode_reason();
}

std::string StateTable(const v1::CompressionState& state) {
  TextTable table({TextTable::Align::kLeft});
  table.Add({"mode", DescribeMode(state.mode(), Reason(state))});
  table.Add(
      {"new requests",
       absl::StrFormat(
           "preset %s, policy %s, ratio %.2f, %s", state.preset(), state.policy(), state.ratio(),
           state.formats().empty() ? "16 bits" : absl::StrJoin(state.formats(), " or "))});
  table.Add({"cache", absl::StrFormat("%s held, ratio %.2f", FormatBytes(state.bytes_held()),
                                      state.ratio_held())});
  table.Add({"besides", absl::StrFormat("%s staging, %s slack", FormatBytes(state.staging_bytes()),
                                        FormatBytes(state.slack_bytes()))});
  table.Add({"swaps", DescribeSwaps(state.swaps(), state.jobs_out())});
  return table.ToString();
}

int RunCompression(const CompressionCommandFlags& flags) {
  const auto state = Ask(flags);
  if (!state.ok()) {
    if (flags.json) {
      std::printf("%s\n", ToJsonText({{"error", ErrorToJson(state.status())}}, true).c_str());
    }
    return Fail(state.status());
  }
  if (flags.json) {
    std::printf("%s\n", ToJsonText(StateJson(*state), true).c_str());
  } else {
    std::fputs(WithoutControls(StateTable(*state)).c_str(), stdout);
  }
  return kExitOk;
}

}  // namespace

void AddCompression(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<CompressionCommandFlags>();
  CLI::App* command =
      app->add_subcommand("compression", "Show how a server compacts its cache, or change it");
  flags->compression.AddTo(command, "as it is; balanced, if another is given");
  auto* pause =
      command->add_flag("--pause", flags->pause, "Compact nothing until --resume")->group("Cache");
  command->add_flag("--resume", flags->resume, "Go on after --pause")
      ->excludes(pause)
      ->group("Cache");
  command
      ->add_option("--mode", flags->mode,
                   "Mode that the guard keeps whatever it measures: compacting, holding,\n"
                   "uncompressed; auto: it decides again")
      ->group("Cache");
  flags->server.AddTo(command);
  command->add_flag("--json", flags->json, "Print JSON")->group("Output");
  command->footer(
      "Changes hold for requests that name no compression, from now until the server ends;\n"
      "--pause and --mode hold for running ones too. Prints what is in force.\n\n"
      "Examples:\n"
      "  condense compression\n"
      "  condense compression --preset light\n"
      "  condense compression --ratio 6 --policy similarity\n"
      "  condense compression --pause\n"
      "  condense compression --mode uncompressed");
  command->callback([flags, exit_code] { *exit_code = RunCompression(*flags); });
}

}  // namespace condense
