#include "tools/interrupt.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "kernels/base/check.h"

namespace condense {
namespace {

std::atomic<int> g_write_end{-1};

// Runs inside a signal: write() to a pipe that never blocks is all that it may do.
void OnSignal(int) {
  const int saved_errno = errno;
  const int fd = g_write_end.load(std::memory_order_relaxed);
  if (fd >= 0) {
    [[maybe_unused]] const ssize_t written = write(fd, "!", 1);
  }
  errno = saved_errno;
}

}  // namespace

Interrupt::Interrupt(std::initializer_list<int> signals) {
  CHECK_EQ(pipe2(pipe_, O_CLOEXEC | O_NONBLOCK), 0);
  CHECK_EQ(g_write_end.exchange(pipe_[1]), -1);
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : signals) {
    struct sigaction previous = {};
    CHECK_EQ(sigaction(signal, &action, &previous), 0);
    previous_.emplace_back(signal, previous);
  }
}

Interrupt::~Interrupt() {
  for (const auto& [signal, previous] : previous_) sigaction(signal, &previous, nullptr);
  g_write_end.store(-1);
  close(pipe_[0]);
  close(pipe_[1]);
}

bool Interrupt::Take() {
  bool taken = false;
  char drained[16];
  while (read(pipe_[0], drained, sizeof(drained)) > 0) taken = true;
  return taken;
}

}  // namespace condense
