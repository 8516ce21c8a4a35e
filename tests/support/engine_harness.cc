#include "tests/support/engine_harness.h"

#include <gtest/gtest.h>

#include <utility>

namespace condense {

Answer ReadAll(TokenStream* stream, absl::Duration limit) {
  Answer answer;
  const absl::Time until = absl::Now() + limit;
  while (true) {
    std::optional<TokenEvent> event = stream->Next(until - absl::Now());
    if (!event.has_value()) {
      ADD_FAILURE() << "request " << stream->request_id() << " did not end within " << limit;
      return answer;
    }
    ++answer.events;
    for (const TokenOutput& output : event->tokens) {
      answer.ids.push_back(output.token);
      answer.logprobs.push_back(output.logprob);
    }
    answer.text += event->text;
    if (event->kind == TokenEvent::Kind::kFinished) {
      answer.last = std::move(*event);
      return answer;
    }
  }
}

Answer RunRequest(Engine* engine, Request request) {
  const auto stream = engine->Submit(std::move(request));
  if (!stream.ok()) {
    ADD_FAILURE() << stream.status();
    return {};
  }
  return ReadAll(stream->get());
}

Request GreedyRequest(std::string id, std::vector<TokenId> prompt, int32_t max_tokens) {
  Request request{.id = std::move(id), .prompt = std::move(prompt)};
  request.sampling.temperature = 0;
  request.stop = {.max_tokens = max_tokens, .ignore_eos = true};
  return request;
}

}  // namespace condense
