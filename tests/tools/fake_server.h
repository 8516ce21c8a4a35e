#ifndef CONDENSE_TESTS_TOOLS_FAKE_SERVER_H_
#define CONDENSE_TESTS_TOOLS_FAKE_SERVER_H_

// A server of condense.v1 without a model: it says what its tests need to hear.

#include <memory>
#include <string>
#include <vector>

#include "condense/v1/admin.pb.h"
#include "condense/v1/inference.pb.h"

namespace condense {

// GenerateStream answers by the text prompt, or by the last message of a chat:
//   "busy"      RESOURCE_EXHAUSTED with RetryInfo, as a full queue says it
//   "too long"  RESOURCE_EXHAUSTED without
//   "draining"  UNAVAILABLE with RetryInfo
//   "bad"       INVALID_ARGUMENT
//   "escape"    a text with a terminal escape
//   "forever"   tokens every few milliseconds until the call is cancelled or expires
// Anything else: "Hello" and " world"; for a chat, how many messages it has and the last one.
// With max_tokens: so many tokens "x" instead.
// Threads: thread-safe.
class FakeServer {
 public:
  FakeServer();
  ~FakeServer();

  const std::string& address() const { return address_; }
  std::vector<v1::GenerateRequest> requests() const;  // seen so far
  // Admin.SetCompression calls. A ratio of 99 is refused; else the state is what was set last.
  std::vector<v1::SetCompressionRequest> compression_changes() const;
  int cancelled() const;  // "forever" calls that ended early

 private:
  struct Impl;
  std::string address_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace condense

#endif  // CONDENSE_TESTS_TOOLS_FAKE_SERVER_H_
