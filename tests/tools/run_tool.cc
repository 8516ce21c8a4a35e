#include "tests/tools/run_tool.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <thread>

extern char** environ;

namespace condense {
namespace {

// A temporary file that is gone when closed.
class ScratchFile {
 public:
  ScratchFile() : file_(std::tmpfile()) { EXPECT_NE(file_, nullptr); }
  ~ScratchFile() { std::fclose(file_); }
  int fd() const { return fileno(file_); }
  void Write(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), file_);
    std::fflush(file_);
    lseek(fd(), 0, SEEK_SET);
  }
  std::string Read() {
    std::string text;
    lseek(fd(), 0, SEEK_SET);
    char piece[4096];
    for (ssize_t size; (size = read(fd(), piece, sizeof(piece))) > 0;) text.append(piece, size);
    return text;
  }

 private:
  FILE* const file_;
};

pid_t Spawn(const std::vector<std::string>& arguments, int in, int out, int err) {
  const std::string path = CONDENSE_BIN "/condense";
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
  pid_t pid = -1;
  EXPECT_EQ(posix_spawn(&pid, path.c_str(), &actions, nullptr, argv.data(), environ), 0) << path;
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

}  // namespace

ToolResult RunTool(const std::vector<std::string>& arguments, const std::string& input,
                   int interrupt_after_ms) {
  ScratchFile in, out, err;
  in.Write(input);
  const pid_t pid = Spawn(arguments, in.fd(), out.fd(), err.fd());
  ToolResult result;
  if (pid < 0) return result;
  if (interrupt_after_ms > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(interrupt_after_ms));
    kill(pid, SIGINT);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = out.Read();
  result.err = err.Read();
  return result;
}

nlohmann::json ReadJsonFile(const std::string& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in.good()) << path;
  return nlohmann::json::parse(in);
}

}  // namespace condense
