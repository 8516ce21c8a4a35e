#ifndef CONDENSE_TOOLS_COMMANDS_H_
#define CONDENSE_TOOLS_COMMANDS_H_

// What every subcommand's file exposes: a function that adds it to the program.

#include "CLI/CLI.hpp"

namespace condense {

// Each adds one subcommand (or a few that belong together). When the command line names it, it runs
// inside CLI::App::parse and leaves its exit code in `exit_code`, which must outlive the parse.
void AddGenerate(CLI::App* app, int* exit_code);
void AddChat(CLI::App* app, int* exit_code);
void AddStatus(CLI::App* app, int* exit_code);
void AddBench(CLI::App* app, int* exit_code);
void AddCompression(CLI::App* app, int* exit_code);
void AddEval(CLI::App* app, int* exit_code);
void AddInspect(CLI::App* app, int* exit_code);
void AddTokenize(CLI::App* app, int* exit_code);  // tokenize, detokenize
void AddScore(CLI::App* app, int* exit_code);
void AddSpeed(CLI::App* app, int* exit_code);

}  // namespace condense

#endif  // CONDENSE_TOOLS_COMMANDS_H_
