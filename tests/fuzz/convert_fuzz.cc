// Any bytes as a client's message: whatever parses is either refused with a code and a message that
// a client can act on, or becomes a request whose every value is in range.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/gguf.h"
#include "kernels/base/check.h"
#include "server/convert_request.h"

namespace condense {
namespace {

constexpr char kTemplate[] = "{{'<|im_start|>' + message['role']}}<|im_end|>";

struct Subject {
  Subject() : chat_template(ChatTemplate::Recognise(kTemplate)) {
    const auto file = GgufFile::Open(CONDENSE_TEST_DATA "/tiny/llama-f32.gguf");
    CHECK(file.ok());
    auto made = Tokenizer::Make(**file);
    CHECK(made.ok());
    tokenizer = *std::move(made);
    info.name = "tiny";
    info.vocab_size = tokenizer->vocab_size();
    info.max_context = 512;
  }

  ModelInfo info;
  std::unique_ptr<const Tokenizer> tokenizer;
  ChatTemplate chat_template;
  Limits limits;
};

bool InRange(float value, float low, float high) { return value >= low && value <= high; }

void CheckIds(const std::vector<TokenId>& ids, const ServedModel& model) {
  for (const TokenId id : ids) CHECK(id >= 0 && id < model.info.vocab_size);
}

void CheckRefusal(const absl::Status& status) {
  CHECK(absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
        absl::IsFailedPrecondition(status));
  CHECK(!status.message().empty());
  CHECK_LE(status.message().size(), 2048u);
}

void CheckRequest(const Request& request, const ServedModel& model) {
  CHECK(!request.id.empty());
  CHECK_LE(static_cast<int64_t>(request.id.size()), model.limits.max_request_id_bytes);
  CHECK(!request.prompt.empty());
  CHECK_LE(static_cast<int64_t>(request.prompt.size()), int64_t{model.info.max_context});
  CheckIds(request.prompt, model);
}

void CheckCall(const Request& request, const ServedModel& model) {
  const SamplingParams& sampling = request.sampling;
  CHECK(InRange(sampling.temperature, 0, 100));
  CHECK(sampling.top_k >= 0 && sampling.top_k <= model.info.vocab_size);
  CHECK(sampling.top_p > 0 && sampling.top_p <= 1);
  CHECK(InRange(sampling.min_p, 0, 1));
  CHECK(InRange(sampling.repetition_penalty, 0.01f, 10));
  CHECK(InRange(sampling.presence_penalty, -10, 10));
  CHECK(InRange(sampling.frequency_penalty, -10, 10));
  for (const auto& [id, bias] : sampling.logit_bias) {
    CHECK(id >= 0 && id < model.info.vocab_size);
    CHECK(InRange(bias, -100, 100));
  }
  const StopParams& stop = request.stop;
  CHECK(stop.max_tokens >= 0 && stop.max_tokens <= model.info.max_context);
  CHECK(stop.min_tokens >= 0 && stop.min_tokens <= model.info.max_context);
  CHECK_LE(static_cast<int64_t>(stop.stop_strings.size()), model.limits.max_stop_strings);
  for (const std::string& text : stop.stop_strings) CHECK(!text.empty());
  CheckIds(stop.stop_ids, model);
  CHECK(request.num_logprobs >= -1 && request.num_logprobs <= model.limits.max_logprobs);
  CHECK(request.priority >= -100 && request.priority <= 100);
  CHECK_LE(static_cast<int64_t>(request.tenant.size()), model.limits.max_tenant_bytes);
}

void Try(const std::string& bytes, const ServedModel& model) {
  v1::GenerateRequest generate;
  if (generate.ParseFromString(bytes)) {
    const auto call = ToGenerateCall(generate, "", absl::InfiniteFuture(), model);
    if (call.ok()) {
      CheckRequest(call->request, model);
      CheckCall(call->request, model);
    } else {
      CheckRefusal(call.status());
    }
  }
  v1::ScoreRequest score;
  if (score.ParseFromString(bytes)) {
    const auto request = ToScoreRequest(score, "", absl::InfiniteFuture(), model);
    if (request.ok()) {
      CheckRequest(*request, model);
    } else {
      CheckRefusal(request.status());
    }
  }
  v1::DetokenizeRequest detokenize;
  if (detokenize.ParseFromString(bytes)) {
    const auto ids = ToTokenIds(detokenize, model);
    if (ids.ok()) {
      CheckIds(*ids, model);
    } else {
      CheckRefusal(ids.status());
    }
  }
}

}  // namespace
}  // namespace condense

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const subject = new condense::Subject();
  condense::Try(std::string(reinterpret_cast<const char*>(data), size),
                {subject->info, *subject->tokenizer, subject->chat_template, subject->limits});
  return 0;
}
