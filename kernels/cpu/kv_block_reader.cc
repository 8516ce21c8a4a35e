#include "kernels/cpu/kv_block_reader.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/kv_codes.h"

namespace condense::cpu {
namespace {

constexpr int kMaxBlockTokens = 64;
constexpr float kLog2E = 1.44269504088896341f;

}  // namespace

void FillMeanCoefficients(const float* mean, int head_dim, RopePairing pairing,
                          TileQueries* queries, float* coefficients) {
  const int pairs = head_dim / 2;
  const int step = pairing == RopePairing::kAdjacent ? 2 : 1;
  const int apart = pairing == RopePairing::kAdjacent ? 1 : pairs;
  queries->first_pair = pairs;
  queries->end_pair = 0;
  for (int i = 0; i < pairs; ++i) {
    if (mean[i * step] == 0.0f && mean[i * step + apart] == 0.0f) continue;
    queries->first_pair = std::min(queries->first_pair, i);
    queries->end_pair = i + 1;
  }
  for (int r = 0; r < queries->rows; ++r) {
    const float* q = queries->plain + int64_t{r} * head_dim;
    float* cos = coefficients + int64_t{r} * head_dim;
    float* sin = cos + pairs;
    for (int i = 0; i < pairs; ++i) {
      const float qa = q[i * step];
      const float qb = q[i * step + apart];
      const float ma = mean[i * step];
      const float mb = mean[i * step + apart];
      cos[i] = qa * ma + qb * mb;
      sin[i] = qb * ma - qa * mb;
    }
  }
  queries->mean_coefficients = coefficients;
}

void FillRunAngles(const PositionTable& positions, const KvBlockShape& shape, float* angles) {
  const int64_t pairs = shape.head_dim / 2;
  const int block_tokens = shape.block_tokens;
  // A table that ends inside a block's length has no run that reaches further.
  const int used = std::min(block_tokens, positions.num_positions);
  std::fill_n(angles, 2 * pairs * block_tokens, 0.0f);
  for (int e = 0; e < used; ++e) {
    for (int64_t i = 0; i < pairs; ++i) {
      angles[i * block_tokens + e] = positions.cos[e * pairs + i];
      angles[(pairs + i) * block_tokens + e] = positions.sin[e * pairs + i];
    }
  }
}

const KvBlockPieces& KvBlockReader::PiecesOf(const KvBlockRef& block) {
  if (pieces_.bytes == 0 || block.format != format_ || block.flags != flags_) {
    format_ = block.format;
    flags_ = block.flags;
    pieces_ = KvPieces(format_, flags_, args_->shape);
  }
  return pieces_;
}

const std::byte* KvBlockReader::DataOf(const KvBlockRef& block) const {
  return args_->arena + int64_t{block.offset_64} * 64;
}

void KvBlockReader::Logits(const KvBlockRef& block, const KvBlockRef& next,
                           const TileQueries& queries, float* logits, int64_t stride) {
  const KvBlockPieces& pieces = PiecesOf(block);
  const std::byte* data = DataOf(block);
  const int bits = KvKeyBits(block.format);
  if (bits == 16) {
    kernels_->query_key({.q = queries.plain,
                         .rows = queries.rows,
                         .head_dim = args_->shape.head_dim,
                         .keys = reinterpret_cast<const Half*>(data),
                         .block_tokens = args_->shape.block_tokens,
                         .next_keys = reinterpret_cast<const Half*>(DataOf(next)),
                         .logits = logits,
                         .logit_stride = stride});
  } else {
    kernels_->query_codes({.q = queries.rotated,
                           .rows = queries.rows,
                           .head_dim = args_->shape.head_dim,
                           .bits = bits,
                           .lower = data + pieces.keys,
                           .upper = data + pieces.key_upper,
                           .scales = reinterpret_cast<const Half*>(data + pieces.key_scales),
                           .block_tokens = args_->shape.block_tokens,
                           .next = DataOf(next),
                           .logits = logits,
                           .logit_stride = stride});
  }
  if ((block.flags & kKvCentred) != 0) AddMeanTerm(block, queries, logits, stride);
  if ((block.flags & kKvBias) != 0) {
    for (int r = 0; r < queries.rows; ++r) {
      kernels_->add_bias(logits + r * stride, reinterpret_cast<const Half*>(data + pieces.bias),
                         kLog2E, args_->shape.block_tokens);
    }
  }
}

void KvBlockReader::AddMeanTerm(const KvBlockRef& block, const TileQueries& queries, float* logits,
                                int64_t stride) const {
  if (queries.first_pair >= queries.end_pair) return;
  const std::byte* data = DataOf(block);
  uint32_t base;
  std::memcpy(&base, data + pieces_.base, sizeof(base));
  if ((block.flags & kKvRun) != 0) return AddMeanRun(base, queries, logits, stride);
  const uint16_t* distances = reinterpret_cast<const uint16_t*>(data + pieces_.distances);
  int32_t positions[kMaxBlockTokens];
  for (int e = 0; e < block.count; ++e) positions[e] = static_cast<int32_t>(base + distances[e]);
  // What slots without an entry hold may be no position.
  std::fill(positions + block.count, positions + args_->shape.block_tokens,
            static_cast<int32_t>(base));
  kernels_->add_mean_term({.coefficients = queries.mean_coefficients,
                           .rows = queries.rows,
                           .pairs = args_->shape.head_dim / 2,
                           .first_pair = queries.first_pair,
                           .end_pair = queries.end_pair,
                           .cos = args_->positions.cos,
                           .sin = args_->positions.sin,
                           .positions = positions,
                           .entries = block.count,
                           .logits = logits,
                           .logit_stride = stride});
}

void KvBlockReader::AddMeanRun(int64_t base, const TileQueries& queries, float* logits,
                               int64_t stride) const {
  DCHECK_LT(base, args_->positions.num_positions);
  const int32_t pairs = args_->shape.head_dim / 2;
  kernels_->add_mean_run({.coefficients = queries.mean_coefficients,
                          .rows = queries.rows,
                          .pairs = pairs,
                          .first_pair = queries.first_pair,
                          .end_pair = queries.end_pair,
                          .cos = args_->positions.cos + base * pairs,
                          .sin = args_->positions.sin + base * pairs,
                          .turned = queries.turned_coefficients,
                          .angles = queries.run_angles,
                          .block_tokens = args_->shape.block_tokens,
                          .logits = logits,
                          .logit_stride = stride});
}

void KvBlockReader::AddValues(const KvBlockRef& block, const KvBlockRef& next, int first,
                              int entries, const Sums& sums) {
  const KvBlockPieces& pieces = PiecesOf(block);
  const int head_dim = args_->shape.head_dim;
  const int bits = KvValueBits(block.format);
  const std::byte* data = DataOf(block);
  // A guess where the formats differ: it is only prefetched.
  const std::byte* next_values = DataOf(next) + pieces.values;
  if (bits == 16) {
    const int64_t skipped = int64_t{first} * head_dim;
    kernels_->weight_value({.weights = sums.weights,
                            .weight_stride = sums.weight_stride,
                            .rows = sums.rows,
                            .values = reinterpret_cast<const Half*>(data + pieces.values) + skipped,
                            .entries = entries,
                            .head_dim = head_dim,
                            .next_values = reinterpret_cast<const Half*>(next_values) + skipped,
                            .sums = sums.plain});
    return;
  }
  const int64_t lower_row = KvPlaneRowBytes(head_dim, KvLowerBits(bits));
  const int64_t upper_row = KvPlaneRowBytes(head_dim, KvUpperBits(bits));
  kernels_->weight_codes(
      {.weights = sums.weights,
       .weight_stride = sums.weight_stride,
       .rows = sums.rows,
       .head_dim = head_dim,
       .bits = bits,
       .lower = data + pieces.values + first * lower_row,
       .upper = data + pieces.value_upper + first * upper_row,
       .scales = reinterpret_cast<const Half*>(data + pieces.value_scales) + first,
       .entries = entries,
       .next = next_values + first * lower_row,
       .sums = KvValuesRotated(block.format) ? sums.rotated : sums.plain});
}

}  // namespace condense::cpu
