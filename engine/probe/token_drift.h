#ifndef CONDENSE_ENGINE_PROBE_TOKEN_DRIFT_H_
#define CONDENSE_ENGINE_PROBE_TOKEN_DRIFT_H_

// How far apart two distributions of the next token are, of which the heads are known.
// docs/guardrails.md, "Drift".

#include <cstdint>

#include "kernels/op_args.h"

namespace condense {

struct TokenDrift {
  double kl = 0;  // nats, at least 0: of `reference` relative to `live`, no more than the true one
  double nll_delta = 0;      // nats: NLL of the token by `live` less that by `reference`
  bool top1_agrees = false;  // the likeliest token is the same
};

// Both results are of the same token and carry their `num_top` likeliest ones, at least 1.
TokenDrift CompareTokens(const SampleResult& live, const SampleResult& reference, int32_t num_top);

}  // namespace condense

#endif  // CONDENSE_ENGINE_PROBE_TOKEN_DRIFT_H_
