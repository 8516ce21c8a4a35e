#include "kernels/cpu/kv_block_reader.h"

#include <cstring>

#include "kernels/base/check.h"
#include "kernels/kv_codes.h"

namespace condense::cpu {
namespace {

constexpr float kLog2E = 1.44269504088896341f;

// Reading begins soon; harmless wherever it points.
void Prefetch(const std::byte* from, int64_t size_bytes) {
  for (int64_t i = 0; i < size_bytes; i += 64) __builtin_prefetch(from + i);
}

}  // namespace

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

const std::byte* KvBlockReader::Fetch(const Ahead& ahead) const {
  // A guess where the formats differ: what is fetched is not used then.
  const std::byte* data = DataOf(*ahead.block);
  const int64_t scales = 2 * args_->shape.block_tokens;
  if (ahead.values) {
    if (KvValueBits(format_) < 16) Prefetch(data + pieces_.value_scales, scales);
    return data + pieces_.values;
  }
  if (KvKeyBits(format_) < 16) Prefetch(data + pieces_.key_scales, scales);
  Prefetch(data + pieces_.bias, pieces_.counts - pieces_.bias);
  return data;
}

void KvBlockReader::Logits(const KvBlockRef& block, const Ahead& ahead, const TileQueries& queries,
                           float* logits, int64_t stride) {
  const KvBlockPieces& pieces = PiecesOf(block);
  const std::byte* data = DataOf(block);
  const std::byte* next = Fetch(ahead);
  const int bits = KvKeyBits(block.format);
  if (bits == 16) {
    kernels_->query_key({.q = queries.plain,
                         .rows = queries.rows,
                         .head_dim = args_->shape.head_dim,
                         .keys = reinterpret_cast<const Half*>(data),
                         .block_tokens = args_->shape.block_tokens,
                         .next_keys = reinterpret_cast<const Half*>(next),
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
                           .next = next,
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
  const MeanHead& mean = *queries.mean;
  if (mean.num_pairs == 0) return;
  const std::byte* data = DataOf(block);
  uint32_t base;
  std::memcpy(&base, data + pieces_.base, sizeof(base));
  DCHECK_LT(int64_t{base}, int64_t{args_->positions.num_positions});
  const int64_t pairs = args_->shape.head_dim / 2;
  const bool near = kernels_->add_mean_term(
      {.coefficients = queries.mean_coefficients,
       .rows = queries.rows,
       .num_pairs = mean.num_pairs,
       .pair_stride = static_cast<int32_t>(mean.pairs.size()),
       .pairs = mean.pairs.data(),
       .cos = args_->positions.cos + base * pairs,
       .sin = args_->positions.sin + base * pairs,
       .turned = queries.turned_coefficients,
       .angles = queries.angles,
       .distances = (block.flags & kKvRun) != 0
                        ? nullptr
                        : reinterpret_cast<const uint16_t*>(data + pieces_.distances),
       .block_tokens = args_->shape.block_tokens,
       .logits = logits,
       .logit_stride = stride});
  if (!near) AddFarMeanTerm(block, base, queries, logits, stride);
}

void KvBlockReader::AddFarMeanTerm(const KvBlockRef& block, int64_t base,
                                   const TileQueries& queries, float* logits,
                                   int64_t stride) const {
  const MeanHead& mean = *queries.mean;
  const int64_t pair_stride = static_cast<int64_t>(mean.pairs.size());
  const int64_t pairs = args_->shape.head_dim / 2;
  const uint16_t* distances = reinterpret_cast<const uint16_t*>(DataOf(block) + pieces_.distances);
  for (int e = 0; e < block.count; ++e) {
    if (distances[e] < kernels_->angle_digits.reach()) continue;
    const float* cos = args_->positions.cos + (base + distances[e]) * pairs;
    const float* sin = args_->positions.sin + (base + distances[e]) * pairs;
    for (int r = 0; r < queries.rows; ++r) {
      const float* a = queries.mean_coefficients + r * 2 * pair_stride;
      const float* b = a + pair_stride;
      float term = 0.0f;
      for (int k = 0; k < mean.num_pairs; ++k) {
        term += a[k] * cos[mean.pairs[k]] + b[k] * sin[mean.pairs[k]];
      }
      logits[r * stride + e] += term;
    }
  }
}

void KvBlockReader::AddValues(const KvBlockRef& block, const Ahead& ahead, int first, int entries,
                              const Sums& sums) {
  const KvBlockPieces& pieces = PiecesOf(block);
  const int head_dim = args_->shape.head_dim;
  const int bits = KvValueBits(block.format);
  const std::byte* data = DataOf(block);
  const std::byte* next = Fetch(ahead);
  if (bits == 16) {
    const int64_t skipped = int64_t{first} * head_dim;
    kernels_->weight_value({.weights = sums.weights,
                            .weight_stride = sums.weight_stride,
                            .rows = sums.rows,
                            .values = reinterpret_cast<const Half*>(data + pieces.values) + skipped,
                            .entries = entries,
                            .head_dim = head_dim,
                            .next_values = reinterpret_cast<const Half*>(next),
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
       .next = next,
       .sums = KvValuesRotated(block.format) ? sums.rotated : sums.plain});
}

}  // namespace condense::cpu
