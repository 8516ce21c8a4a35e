#ifndef CONDENSE_KERNELS_OP_ARGS_H_
#define CONDENSE_KERNELS_OP_ARGS_H_

// One POD per backend op: the vocabulary of the seam. Shapes are written outermost first and are
// row-major unless said otherwise. Letters: T tokens of a step, S sequences, H query heads, G KV
// heads, D head dim, B block entries, V vocabulary, E embedding width, F feed-forward width, R
// selected rows. "device": memory of this backend. "host": plain memory, read before the call
// returns.

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/kv_op_args.h"
#include "kernels/packed_weights.h"

namespace condense {

// out[t] = table[tokens[t]] * scale.
struct EmbedArgs {
  WeightView table;                 // device [V, E]
  const TokenId* tokens = nullptr;  // host [T], each in [0, V)
  int32_t num_tokens = 0;           // T
  float scale = 1.0f;
  float* out = nullptr;  // device [T, E]
};

// out[r] = x[row(r)] / sqrt(mean(x[row(r)]^2) + epsilon) * weight. `out` may be `x` when
// `row_index` is null.
struct RmsNormArgs {
  const float* x = nullptr;            // device [*, cols]
  const float* weight = nullptr;       // device [cols]
  const int32_t* row_index = nullptr;  // host [rows], or null for 0..rows-1
  int32_t rows = 0;
  int32_t cols = 0;
  float epsilon = 0.0f;
  float* out = nullptr;  // device [rows, cols]
};

// y = x W^T (+ bias) or, with accumulate, y += x W^T (+ bias).
struct MatmulOutput {
  WeightView weight;            // device [N, K]
  const float* bias = nullptr;  // device [N] or null
  float* y = nullptr;           // device [T, N]
  bool accumulate = false;
};
inline constexpr int kMaxMatmulOutputs = 3;
// Up to three matrices that read the same input (q, k, v; gate, up), so that the input is quantized
// once. The result of a row does not depend on the other rows, on T or on the number of threads
// (bit for bit).
struct MatmulArgs {
  const float* x = nullptr;  // device [T, K]
  int32_t rows = 0;          // T
  int32_t num_outputs = 0;
  MatmulOutput outputs[kMaxMatmulOutputs];
};

// Rotate pairs of x in place by the angles of each token.
struct RopeArgs {
  float* x = nullptr;          // device [T, heads, D]
  const float* cos = nullptr;  // device [T, D/2]
  const float* sin = nullptr;  // device [T, D/2]
  int32_t num_tokens = 0;
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  RopePairing pairing = RopePairing::kAdjacent;
};

enum class Activation : uint8_t { kSilu, kGeluTanh };
// gate = activation(gate) * up, in place.
struct GateArgs {
  float* gate = nullptr;      // device [T, F]
  const float* up = nullptr;  // device [T, F]
  int64_t size = 0;           // T * F
  Activation activation = Activation::kSilu;
};

// x += y.
struct AddArgs {
  float* x = nullptr;        // device
  const float* y = nullptr;  // device
  int64_t size = 0;
};

inline constexpr int kMaxTopLogprobs = 20;
struct TokenBias {
  TokenId token = 0;
  float bias = 0.0f;  // -infinity forbids the token
};
struct TokenCount {
  TokenId token = 0;
  int32_t generated = 0;  // times among the generated tokens; 0: in the prompt only
};
struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0f;
};
// What to choose from one row of logits, in this order: repetition penalty (tokens of prompt and
// output), presence and frequency penalties (generated tokens), bias; then temperature, top-k,
// top-p of what is left, min-p. temperature 0 takes the largest logit, the lowest id among equals.
// Log-probabilities are those of the unmodified logits at temperature 1.
struct SampleRow {
  float temperature = 0.0f;
  int32_t top_k = 0;   // 0: off
  float top_p = 1.0f;  // 1: off
  float min_p = 0.0f;  // 0: off
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  double uniform = 0.0;  // in [0, 1): which quantile of the kept distribution, tokens in id order
  TokenId target = -1;   // >= 0: choose this token and report its log-probability (scoring)
  int32_t num_top = 0;   // alternatives to report, at most kMaxTopLogprobs
  const TokenCount* seen = nullptr;  // host, distinct tokens
  int32_t num_seen = 0;
  const TokenBias* bias = nullptr;  // host, distinct tokens
  int32_t num_bias = 0;
};
struct SampleResult {
  TokenId token = -1;
  float logprob = 0.0f;
  bool finite = true;  // false: the row held NaN or no finite logit; `token` is then -1
  TokenLogprob top[kMaxTopLogprobs];  // num_top of them, largest first
};
struct SampleArgs {
  const float* logits = nullptr;      // device [R, V]
  int32_t rows = 0;                   // R
  int32_t vocab = 0;                  // V
  const SampleRow* params = nullptr;  // host [R]
  SampleResult* results = nullptr;    // host [R]; valid after Synchronize()
};

}  // namespace condense

#endif  // CONDENSE_KERNELS_OP_ARGS_H_
