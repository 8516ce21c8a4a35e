#include "kernels/cpu/mean_term.h"

#include <algorithm>

namespace condense::cpu {
namespace {

constexpr int kStrideStep = 16;  // lanes of the widest vector

// Where the two numbers of a pair lie in a vector of D.
struct PairSpots {
  PairSpots(RopePairing pairing, int head_dim)
      : step(pairing == RopePairing::kAdjacent ? 2 : 1),
        apart(pairing == RopePairing::kAdjacent ? 1 : head_dim / 2) {}
  int step;
  int apart;
};

// Positions 0, step, 2 step ... that the table has, `most` at most.
int PositionsInTable(const PositionTable& positions, int step, int most) {
  return std::min(most, (positions.num_positions + step - 1) / step);
}

}  // namespace

void MeanTables::Fill(const float* key_mean, int num_kv_heads, const PositionTable& positions,
                      const KvBlockShape& shape, bool gaps) {
  const int head_dim = shape.head_dim;
  const PairSpots spots(positions.pairing, head_dim);
  heads_.resize(num_kv_heads);
  for (int g = 0; g < num_kv_heads; ++g) {
    MeanHead& head = heads_[g];
    head.mean = key_mean + int64_t{g} * head_dim;
    head.pairs.clear();
    for (int i = 0; i < head_dim / 2; ++i) {
      const float* pair = head.mean + i * spots.step;
      if (pair[0] != 0.0f || pair[spots.apart] != 0.0f) head.pairs.push_back(i);
    }
    head.num_pairs = static_cast<int32_t>(head.pairs.size());
    head.pairs.resize((head.pairs.size() + kStrideStep - 1) / kStrideStep * kStrideStep);
  }
  FillAngles(positions, shape, gaps);
}

void MeanTables::FillAngles(const PositionTable& positions, const KvBlockShape& shape, bool gaps) {
  const AngleDigits& digits = kernels_->angle_digits;
  const int pairs = shape.head_dim / 2;
  const int64_t step = digits.table_floats(shape.block_tokens);
  angles_ = angle_floats_.Reserve(pairs * step);
  // `count` distances from 0 on, and the sines behind the cosines.
  const auto fill = [&](int distance, int count, float* to) {
    const int64_t row = int64_t{distance} * pairs;
    const int in_table = PositionsInTable(positions, distance, count);
    if (in_table < count) {
      for (int i = 0; i < pairs; ++i) std::fill_n(to + i * step, 2 * count, 0.0f);
    }
    kernels_->transpose(positions.cos, row, in_table, pairs, to, step);
    kernels_->transpose(positions.sin, row, in_table, pairs, to + count, step);
  };
  fill(1, shape.block_tokens, angles_);
  float* to = angles_ + 2 * shape.block_tokens;
  for (int i = 0; gaps && i < digits.digits; ++i) {
    fill(1 << (i * digits.bits), digits.values(), to);
    to += 2 * digits.values();
  }
}

void FillMeanCoefficients(const MeanHead& head, int head_dim, RopePairing pairing, const float* q,
                          int rows, float* coefficients) {
  const PairSpots spots(pairing, head_dim);
  const int num_pairs = head.num_pairs;
  const int64_t stride = static_cast<int64_t>(head.pairs.size());
  for (int r = 0; r < rows; ++r) {
    float* cos = coefficients + r * 2 * stride;
    float* sin = cos + stride;
    for (int k = 0; k < num_pairs; ++k) {
      const int at = head.pairs[k] * spots.step;
      const float* query = q + int64_t{r} * head_dim + at;
      const float* mean = head.mean + at;
      cos[k] = query[0] * mean[0] + query[spots.apart] * mean[spots.apart];
      sin[k] = query[spots.apart] * mean[0] - query[0] * mean[spots.apart];
    }
    std::fill(cos + num_pairs, sin, 0.0f);
    std::fill(sin + num_pairs, sin + stride, 0.0f);
  }
}

}  // namespace condense::cpu
