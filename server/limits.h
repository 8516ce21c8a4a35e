#ifndef CONDENSE_SERVER_LIMITS_H_
#define CONDENSE_SERVER_LIMITS_H_

// The limits on what a client may send. Each is a flag of the server and an entry of
// GetServerInfo.limits under the same name.

#include <cstdint>

namespace condense {

struct Limits {
  int64_t max_message_bytes = 16 << 20;  // of one gRPC message; gRPC itself refuses larger ones
  int64_t max_prompt_bytes = 4 << 20;    // of text, or of all messages of a chat together
  int64_t max_token_ids = 1 << 20;       // to Detokenize; prompts are limited by the context
  int64_t max_chat_messages = 1024;
  int64_t max_stop_strings = 16;
  int64_t max_stop_string_bytes = 256;  // of each
  int64_t max_stop_ids = 64;
  int64_t max_logit_bias = 1024;  // entries
  int64_t max_logprobs = 20;      // alternatives of each token; at most kMaxLogprobs
  int64_t max_request_id_bytes = 128;
  int64_t max_tenant_bytes = 64;
};

// The ceiling of the flag: no more are computed for a token.
inline constexpr int64_t kMaxLogprobs = 20;

// Calls visit(name, value) for every limit.
template <typename Visitor>
void VisitLimits(const Limits& limits, Visitor&& visit) {
  visit("max_message_bytes", limits.max_message_bytes);
  visit("max_prompt_bytes", limits.max_prompt_bytes);
  visit("max_token_ids", limits.max_token_ids);
  visit("max_chat_messages", limits.max_chat_messages);
  visit("max_stop_strings", limits.max_stop_strings);
  visit("max_stop_string_bytes", limits.max_stop_string_bytes);
  visit("max_stop_ids", limits.max_stop_ids);
  visit("max_logit_bias", limits.max_logit_bias);
  visit("max_logprobs", limits.max_logprobs);
  visit("max_request_id_bytes", limits.max_request_id_bytes);
  visit("max_tenant_bytes", limits.max_tenant_bytes);
}

}  // namespace condense

#endif  // CONDENSE_SERVER_LIMITS_H_
