#ifndef CONDENSE_TESTS_TOOLS_RUN_TOOL_H_
#define CONDENSE_TESTS_TOOLS_RUN_TOOL_H_

// Runs the built program `condense` as a child process.

#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace condense {

struct ToolResult {
  int exit_code = -1;  // 128 + signal if one killed it
  std::string out;
  std::string err;
};

// `interrupt_after_ms` > 0: sends SIGINT to it then.
ToolResult RunTool(const std::vector<std::string>& arguments, const std::string& input = "",
                   int interrupt_after_ms = 0);

// What a program did to the terminal that it ran on.
struct TerminalResult {
  int exit_code = -1;
  std::string out;             // all that it sent
  bool same_settings = false;  // the line discipline is as before
};

// Runs it on a terminal of its own; when it has sent `awaited`, types `keys`. "\x03" is Ctrl-C.
TerminalResult RunToolOnTerminal(const std::vector<std::string>& arguments, int columns, int rows,
                                 const std::string& awaited, const std::string& keys);

nlohmann::json ReadJsonFile(const std::string& path);

}  // namespace condense

#endif  // CONDENSE_TESTS_TOOLS_RUN_TOOL_H_
