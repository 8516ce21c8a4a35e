#ifndef CONDENSE_TOOLS_LINE_READER_H_
#define CONDENSE_TOOLS_LINE_READER_H_

// Lines that a person types, with editing and history on a terminal; plain lines otherwise.

#include <memory>
#include <string>

#include "tools/interrupt.h"

namespace condense {

// Threads: thread-compatible. At most one at a time (the editor is a global thing).
class LineReader {
 public:
  enum class Result { kLine, kEnd, kInterrupted };

  virtual ~LineReader() = default;
  // The editor if input and output are terminals. `interrupt` must outlive it.
  static std::unique_ptr<LineReader> Make(Interrupt* interrupt);

  // Shows `prompt` (on a terminal only) and waits. A text pasted into a terminal that brackets
  // pastes is one entry, its line breaks included. kInterrupted: Ctrl-C; what was typed is dropped.
  virtual Result Read(const std::string& prompt, std::string* line) = 0;
  virtual bool interactive() const = 0;
};

}  // namespace condense

#endif  // CONDENSE_TOOLS_LINE_READER_H_
