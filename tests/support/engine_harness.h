#ifndef CONDENSE_TESTS_SUPPORT_ENGINE_HARNESS_H_
#define CONDENSE_TESTS_SUPPORT_ENGINE_HARNESS_H_

// Runs requests through an Engine and collects what their streams carry.

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace condense {

// All that one stream carried.
struct Answer {
  std::vector<TokenId> ids;
  std::vector<float> logprobs;
  std::string text;
  TokenEvent last;  // kFinished
  int events = 0;
};

// Reads until the stream's end; fails the test and returns what came if it takes longer than
// `limit`.
Answer ReadAll(TokenStream* stream, absl::Duration limit = absl::Seconds(60));

// Submits and reads. Fails the test if the request is refused.
Answer RunRequest(Engine* engine, Request request);

// A greedy request that generates exactly `max_tokens`.
Request GreedyRequest(std::string id, std::vector<TokenId> prompt, int32_t max_tokens);

}  // namespace condense

#endif  // CONDENSE_TESTS_SUPPORT_ENGINE_HARNESS_H_
