#ifndef CONDENSE_TOOLS_INTERRUPT_H_
#define CONDENSE_TOOLS_INTERRUPT_H_

// Ctrl-C as an event to look at rather than the end of the program.

#include <signal.h>

namespace condense {

// Takes SIGINT over while it lives and gives it back as it was. At most one at a time.
// Threads: thread-compatible; the signal may arrive on any thread.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Readable while a signal waits to be taken; for poll().
  int fd() const { return pipe_[0]; }
  // Whether a signal came since the last call.
  bool Take();

 private:
  int pipe_[2] = {-1, -1};
  struct sigaction previous_ = {};
};

}  // namespace condense

#endif  // CONDENSE_TOOLS_INTERRUPT_H_
