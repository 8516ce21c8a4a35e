#include "tools/condense.h"

#include <exception>

#include "CLI/CLI.hpp"
#include "tools/commands.h"
#include "tools/exit_code.h"

namespace condense {

int RunCondense(int argc, char** argv) {
  CLI::App app(
      "Works with a Condense server (generate, chat, status, bench, compression) and, without one, "
      "with model files\n(eval, inspect, tokenize, detokenize, score, speed).",
      "condense");
  app.set_version_flag("--version", "condense " CONDENSE_VERSION);
  app.require_subcommand(1);
  app.footer(std::string("`condense COMMAND --help` tells more and shows an example.\n\n") +
             kExitCodeHelp);
  int exit_code = kExitOk;
  AddGenerate(&app, &exit_code);
  AddChat(&app, &exit_code);
  AddStatus(&app, &exit_code);
  AddBench(&app, &exit_code);
  AddCompression(&app, &exit_code);
  AddEval(&app, &exit_code);
  AddInspect(&app, &exit_code);
  AddTokenize(&app, &exit_code);
  AddScore(&app, &exit_code);
  AddSpeed(&app, &exit_code);
  // CLI11 reports bad usage, --help and --version by exceptions.
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  } catch (const std::exception& error) {
    return Fail(absl::InternalError(error.what()));
  }
  return exit_code;
}

}  // namespace condense
