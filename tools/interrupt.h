#ifndef CONDENSE_TOOLS_INTERRUPT_H_
#define CONDENSE_TOOLS_INTERRUPT_H_

// Ctrl-C, or another signal, as an event to look at rather than the end of the program.

#include <signal.h>

#include <initializer_list>
#include <utility>
#include <vector>

namespace condense {

// Takes the signals over while it lives and gives them back as they were. At most one at a time.
// Threads: thread-compatible; the signal may arrive on any thread.
class Interrupt {
 public:
  explicit Interrupt(std::initializer_list<int> signals = {SIGINT});
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Readable while a signal waits to be taken; for poll().
  int fd() const { return pipe_[0]; }
  // Whether a signal came since the last call.
  bool Take();

 private:
  int pipe_[2] = {-1, -1};
  std::vector<std::pair<int, struct sigaction>> previous_;
};

}  // namespace condense

#endif  // CONDENSE_TOOLS_INTERRUPT_H_
