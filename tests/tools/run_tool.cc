#include "tests/tools/run_tool.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

extern char** environ;

namespace condense {
namespace {

// A program that is not through by then hangs.
constexpr std::chrono::seconds kLongestOnTerminal(100);

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

// -1 if it cannot be started.
pid_t Spawn(const std::vector<std::string>& arguments, const posix_spawn_file_actions_t& actions,
            const posix_spawnattr_t* attributes) {
  const std::string path = CONDENSE_BIN "/condense";
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = -1;
  EXPECT_EQ(posix_spawn(&pid, path.c_str(), &actions, attributes, argv.data(), environ), 0) << path;
  return pid;
}

pid_t SpawnOnFiles(const std::vector<std::string>& arguments, int in, int out, int err) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
  const pid_t pid = Spawn(arguments, actions, nullptr);
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

// In a session of its own, whose terminal is the one opened here: Ctrl-C reaches nobody else.
pid_t SpawnOnTerminal(const std::vector<std::string>& arguments, const char* terminal) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, terminal, O_RDWR, 0);
  posix_spawn_file_actions_adddup2(&actions, STDIN_FILENO, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, STDIN_FILENO, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  const pid_t pid = Spawn(arguments, actions, &attributes);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

int ExitCodeOf(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The far end of a terminal, and the terminal itself held open, so that it outlives the program.
class Terminal {
 public:
  Terminal(int columns, int rows) {
    EXPECT_EQ(grantpt(far_), 0);
    EXPECT_EQ(unlockpt(far_), 0);
    near_ = open(name(), O_RDWR | O_NOCTTY | O_CLOEXEC);
    EXPECT_GE(near_, 0);
    winsize size = {};
    size.ws_col = static_cast<uint16_t>(columns);
    size.ws_row = static_cast<uint16_t>(rows);
    EXPECT_EQ(ioctl(near_, TIOCSWINSZ, &size), 0);
  }
  ~Terminal() {
    close(near_);
    close(far_);
  }
  int far() const { return far_; }
  const char* name() const { return ptsname(far_); }
  termios Settings() const {
    termios settings = {};
    EXPECT_EQ(tcgetattr(near_, &settings), 0);
    return settings;
  }
  // Appends what was sent; waits for it up to a little while.
  void Read(std::string* out) const {
    pollfd sent = {.fd = far_, .events = POLLIN, .revents = 0};
    char piece[4096];
    if (poll(&sent, 1, /*timeout=*/50) != 1) return;
    const ssize_t size = read(far_, piece, sizeof(piece));
    if (size > 0) out->append(piece, static_cast<size_t>(size));
  }

 private:
  const int far_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  int near_ = -1;
};

}  // namespace

ToolResult RunTool(const std::vector<std::string>& arguments, const std::string& input,
                   int interrupt_after_ms) {
  ScratchFile in, out, err;
  in.Write(input);
  const pid_t pid = SpawnOnFiles(arguments, in.fd(), out.fd(), err.fd());
  ToolResult result;
  if (pid < 0) return result;
  if (interrupt_after_ms > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(interrupt_after_ms));
    kill(pid, SIGINT);
  }
  result.exit_code = ExitCodeOf(pid);
  result.out = out.Read();
  result.err = err.Read();
  return result;
}

TerminalResult RunToolOnTerminal(const std::vector<std::string>& arguments, int columns, int rows,
                                 const std::string& awaited, const std::string& keys) {
  const Terminal terminal(columns, rows);
  const termios before = terminal.Settings();
  TerminalResult result;
  const pid_t pid = SpawnOnTerminal(arguments, terminal.name());
  if (pid < 0) return result;
  bool typed = false;
  // Until it has ended, without taking its exit status yet; a program that hangs is ended.
  const auto until = std::chrono::steady_clock::now() + kLongestOnTerminal;
  siginfo_t ended = {};
  while (ended.si_pid == 0) {
    if (std::chrono::steady_clock::now() > until) kill(pid, SIGKILL);
    terminal.Read(&result.out);
    if (!typed && result.out.find(awaited) != std::string::npos) {
      typed = write(terminal.far(), keys.data(), keys.size()) == static_cast<ssize_t>(keys.size());
    }
    waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOHANG | WNOWAIT);
  }
  result.exit_code = ExitCodeOf(pid);
  size_t size = 0;
  do {
    size = result.out.size();
    terminal.Read(&result.out);
  } while (result.out.size() > size);
  EXPECT_TRUE(typed) << "it never said " << awaited;
  const termios after = terminal.Settings();
  result.same_settings = std::memcmp(&before, &after, sizeof(before)) == 0;
  return result;
}

nlohmann::json ReadJsonFile(const std::string& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in.good()) << path;
  return nlohmann::json::parse(in);
}

}  // namespace condense
