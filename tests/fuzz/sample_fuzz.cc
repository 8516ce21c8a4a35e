// Any logits and any sampling parameters on the CPU, with its plainest and its best instruction
// set: the answer is a token of the vocabulary or "nothing finite", and parameters that a client
// may send never choose a token that is forbidden.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/base/check.h"
#include "tests/fuzz/byte_reader.h"

namespace condense {
namespace {

constexpr int kMaxVocab = 200;

std::unique_ptr<Backend> Make(const char* isa) {
  auto backend = MakeBackend({.kind = "cpu", .num_threads = 1, .cpu_isa = isa});
  CHECK(backend.ok());
  return *std::move(backend);
}

// One request: arrays and the row that points into them.
struct Case {
  std::vector<float> logits;
  std::vector<TokenCount> seen;
  std::vector<TokenBias> bias;
  SampleRow row;
};

Case Read(ByteReader* reader) {
  Case c;
  const int vocab = 1 + reader->Take<uint8_t>() % kMaxVocab;
  SampleRow& row = c.row;
  row.temperature = reader->Take<float>();
  row.top_k = reader->Take<int32_t>();
  row.top_p = reader->Take<float>();
  row.min_p = reader->Take<float>();
  row.repetition_penalty = reader->Take<float>();
  row.presence_penalty = reader->Take<float>();
  row.frequency_penalty = reader->Take<float>();
  row.uniform = reader->Take<uint32_t>() * 0x1p-32;
  row.target = reader->Take<int8_t>() % vocab;
  row.num_top = reader->Take<int32_t>();
  // Distinct tokens, as the op asks for.
  const int num_seen = reader->Take<uint8_t>() % (vocab + 1);
  const int num_bias = reader->Take<uint8_t>() % (vocab + 1);
  for (int i = 0; i < num_seen; ++i) c.seen.push_back({i, reader->Take<int32_t>()});
  for (int i = 0; i < num_bias; ++i) c.bias.push_back({vocab - 1 - i, reader->Take<float>()});
  row.seen = c.seen.data();
  row.num_seen = num_seen;
  row.bias = c.bias.data();
  row.num_bias = num_bias;
  for (int i = 0; i < vocab; ++i) c.logits.push_back(reader->Take<float>());
  return c;
}

bool InRange(float value, float low, float high) { return value >= low && value <= high; }

bool MayBeSent(const SampleRow& row) {
  return InRange(row.temperature, 0, 100) && row.top_p > 0 && row.top_p <= 1 &&
         InRange(row.min_p, 0, 1) && InRange(row.repetition_penalty, 0.01f, 10) &&
         InRange(row.presence_penalty, -10, 10) && InRange(row.frequency_penalty, -10, 10);
}

bool IsForbidden(const Case& c, TokenId token) {
  if (c.logits[token] == -INFINITY) return true;
  return std::any_of(c.bias.begin(), c.bias.end(), [&](const TokenBias& bias) {
    return bias.token == token && bias.bias == -INFINITY;
  });
}

void Try(Backend* backend, const Case& c) {
  const auto vocab = static_cast<int32_t>(c.logits.size());
  const auto bytes = static_cast<int64_t>(c.logits.size() * sizeof(float));
  auto logits = backend->Allocate(bytes);
  CHECK(logits.ok());
  backend->CopyToDevice(logits->data(), reinterpret_cast<const std::byte*>(c.logits.data()), bytes);
  SampleResult result;
  backend->Sample({.logits = logits->as<float>(),
                   .rows = 1,
                   .vocab = vocab,
                   .params = &c.row,
                   .results = &result});
  CHECK(backend->Synchronize().ok());
  if (!result.finite) {
    CHECK_EQ(result.token, -1);
    return;
  }
  CHECK(result.token >= 0 && result.token < vocab);
  CHECK(!std::isnan(result.logprob) && result.logprob < 1e-3f);
  const int num_top = std::min({c.row.num_top, kMaxTopLogprobs, vocab});
  for (int i = 0; i < num_top; ++i) {
    CHECK(result.top[i].token >= 0 && result.top[i].token < vocab);
    CHECK(i == 0 || result.top[i].logprob <= result.top[i - 1].logprob);
  }
  if (c.row.target >= 0) {
    CHECK_EQ(result.token, c.row.target);
  } else if (MayBeSent(c.row)) {
    CHECK(!IsForbidden(c, result.token));
  }
}

}  // namespace
}  // namespace condense

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static condense::Backend* const scalar = condense::Make("scalar").release();
  static condense::Backend* const best = condense::Make("auto").release();
  condense::ByteReader reader(data, size);
  const condense::Case c = condense::Read(&reader);
  condense::Try(scalar, c);
  condense::Try(best, c);
  return 0;
}
