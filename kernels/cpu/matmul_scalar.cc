#include <cstring>

#include "kernels/base/dtype.h"
#include "kernels/cpu/matmul_kernels.h"

namespace condense::cpu {
namespace {

constexpr int kRows = kWeightRowGroup;
constexpr int kQuads = kWeightBlock / 4;

// A tile as the inner loop wants it, whatever its format.
struct Tile {
  int8_t codes[kQuads][kRows][4];
  float scale[kRows];
  float min[kRows];
};

void LoadHalves(const std::byte* from, float* to) {
  for (int row = 0; row < kRows; ++row) {
    Half half;
    std::memcpy(&half, from + row * sizeof(Half), sizeof(Half));
    to[row] = ToFloat(half);
  }
}

void LoadTile4(const std::byte* from, Tile* tile) {
  constexpr int kBytes = kRows * kWeightBlock / 2;
  int8_t* codes = &tile->codes[0][0][0];
  for (int i = 0; i < kBytes; ++i) {
    const auto pair = static_cast<uint8_t>(from[i]);
    codes[i] = static_cast<int8_t>(pair & 0xf);
    codes[i + kBytes] = static_cast<int8_t>(pair >> 4);
  }
  LoadHalves(from + kBytes, tile->scale);
  LoadHalves(from + kBytes + kRows * sizeof(Half), tile->min);
}

void LoadTile8(const std::byte* from, Tile* tile) {
  std::memcpy(tile->codes, from, sizeof(tile->codes));
  LoadHalves(from + sizeof(tile->codes), tile->scale);
}

// `codes` holds the two parts of a block of activations.
void Dot(const Tile& tile, const int8_t* codes, int32_t* dot) {
  int32_t x[kWeightBlock];
  for (int i = 0; i < kWeightBlock; ++i) x[i] = kCodeBase * codes[i] + codes[kWeightBlock + i];
  std::memset(dot, 0, kRows * sizeof(int32_t));
  for (int quad = 0; quad < kQuads; ++quad) {
    for (int row = 0; row < kRows; ++row) {
      const int8_t* w = tile.codes[quad][row];
      const int32_t* a = x + quad * 4;
      dot[row] += w[0] * a[0] + w[1] * a[1] + w[2] * a[2] + w[3] * a[3];
    }
  }
}

template <WeightFormat kFormat>
void PackedGroup(const GroupArgs& args) {
  const QuantizedTile& x = args.quantized;
  std::memset(args.sums, 0, args.num_tokens * kRows * sizeof(float));
  Tile tile;
  const std::byte* from = args.stream;
  for (int64_t block = 0; block < x.blocks; ++block, from += kTileBytes<kFormat>) {
    kFormat == WeightFormat::kPacked4 ? LoadTile4(from, &tile) : LoadTile8(from, &tile);
    for (int token = 0; token < args.num_tokens; ++token) {
      const int64_t index = static_cast<int64_t>(block) * x.rows + token;
      float* sums = args.sums + token * kRows;
      int32_t dot[kRows];
      Dot(tile, x.codes + index * kCodeBlockBytes, dot);
      for (int row = 0; row < kRows; ++row) {
        sums[row] += tile.scale[row] * x.scale[index] * static_cast<float>(dot[row]);
        if (kFormat == WeightFormat::kPacked4) sums[row] += tile.min[row] * x.scaled_sum[index];
      }
    }
  }
}

template <typename T>
float Widen(T value) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return value;
  } else {
    return ToFloat(value);
  }
}

template <typename T>
void FloatGroup(const GroupArgs& args) {
  std::memset(args.sums, 0, args.num_tokens * kRows * sizeof(float));
  for (int32_t col = 0; col < args.cols; ++col) {
    T stored[kRows];
    float weights[kRows];
    std::memcpy(stored, args.stream + col * sizeof(stored), sizeof(stored));
    for (int row = 0; row < kRows; ++row) weights[row] = Widen(stored[row]);
    for (int token = 0; token < args.num_tokens; ++token) {
      const float x = args.x[static_cast<int64_t>(token) * args.cols + col];
      float* sums = args.sums + token * kRows;
      for (int row = 0; row < kRows; ++row) sums[row] += weights[row] * x;
    }
  }
}

}  // namespace

const MatmulKernels kScalarMatmulKernels = {{
    FloatGroup<float>,
    FloatGroup<Half>,
    FloatGroup<BFloat16>,
    PackedGroup<WeightFormat::kPacked4>,
    PackedGroup<WeightFormat::kPacked8>,
}};

}  // namespace condense::cpu
