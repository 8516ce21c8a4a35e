#ifndef CONDENSE_TOOLS_CONDENSE_H_
#define CONDENSE_TOOLS_CONDENSE_H_

// The program `condense`: one subcommand per file of this folder.

namespace condense {

// Parses the command line, runs the subcommand, and returns the exit code (see exit_code.h).
int RunCondense(int argc, char** argv);

}  // namespace condense

#endif  // CONDENSE_TOOLS_CONDENSE_H_
