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

nlohmann::json ReadJsonFile(const std::string& path);

}  // namespace condense

#endif  // CONDENSE_TESTS_TOOLS_RUN_TOOL_H_
