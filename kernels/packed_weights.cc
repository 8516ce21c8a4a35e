#include "kernels/packed_weights.h"

#include <cstring>

#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr int kQuad = 4;  // columns whose codes lie side by side
constexpr int kPacked4Codes = kWeightRowGroup * kWeightBlock / 2;
constexpr int kPacked8Codes = kWeightRowGroup * kWeightBlock;
constexpr int kTileHalves = kWeightRowGroup * static_cast<int>(sizeof(Half));

// Where one row's codes of a tile start; quads follow at a stride of 16 * 4 bytes.
constexpr int kQuadStride = kWeightRowGroup * kQuad;

int64_t TileOffset(WeightFormat format, int64_t cols, int64_t row, int64_t tile) {
  const int64_t tiles = cols / WeightTileCols(format);
  return (row / kWeightRowGroup * tiles + tile) * WeightTileBytes(format);
}

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <typename T>
void Store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

void UnpackTile4(const std::byte* tile, int lane, float* values) {
  const std::byte* codes = tile + lane * kQuad;
  const std::byte* scales = tile + kPacked4Codes + lane * sizeof(Half);
  const float scale = ToFloat(Load<Half>(scales));
  const float min = ToFloat(Load<Half>(scales + kTileHalves));
  for (int i = 0; i < kWeightBlock / 2; ++i) {
    const auto pair = static_cast<uint32_t>(codes[i / kQuad * kQuadStride + i % kQuad]);
    values[i] = scale * static_cast<float>(pair & 0xfu) + min;
    values[i + kWeightBlock / 2] = scale * static_cast<float>(pair >> 4) + min;
  }
}

void UnpackTile8(const std::byte* tile, int lane, float* values) {
  const std::byte* codes = tile + lane * kQuad;
  const float scale = ToFloat(Load<Half>(tile + kPacked8Codes + lane * sizeof(Half)));
  for (int i = 0; i < kWeightBlock; ++i) {
    const auto code = static_cast<int8_t>(codes[i / kQuad * kQuadStride + i % kQuad]);
    values[i] = scale * static_cast<float>(code);
  }
}

}  // namespace

const char* WeightFormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kF16:
      return "f16";
    case WeightFormat::kBf16:
      return "bf16";
    case WeightFormat::kPacked4:
      return "packed4";
    case WeightFormat::kPacked8:
      return "packed8";
  }
  CheckFailed(__FILE__, __LINE__, "unknown weight format");
}

int WeightTileCols(WeightFormat format) {
  return format == WeightFormat::kPacked4 || format == WeightFormat::kPacked8 ? kWeightBlock : 1;
}

int64_t WeightTileBytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return kWeightRowGroup * sizeof(float);
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
      return kWeightRowGroup * sizeof(uint16_t);
    case WeightFormat::kPacked4:
      return kPacked4Codes + 2 * kTileHalves;
    case WeightFormat::kPacked8:
      return kPacked8Codes + kTileHalves;
  }
  CheckFailed(__FILE__, __LINE__, "unknown weight format");
}

int64_t WeightBytes(WeightFormat format, int64_t rows, int64_t cols) {
  CHECK_EQ(cols % WeightTileCols(format), 0);
  const int64_t groups = (rows + kWeightRowGroup - 1) / kWeightRowGroup;
  return groups * (cols / WeightTileCols(format)) * WeightTileBytes(format);
}

void PackBlock4(std::byte* data, int64_t cols, int64_t row, int64_t block,
                const WeightBlock4& source) {
  const auto lane = static_cast<int>(row % kWeightRowGroup);
  std::byte* tile = data + TileOffset(WeightFormat::kPacked4, cols, row, block);
  std::byte* codes = tile + lane * kQuad;
  for (int i = 0; i < kWeightBlock / 2; ++i) {
    const int pair = source.codes[i] | source.codes[i + kWeightBlock / 2] << 4;
    codes[i / kQuad * kQuadStride + i % kQuad] = static_cast<std::byte>(pair);
  }
  std::byte* scales = tile + kPacked4Codes + lane * sizeof(Half);
  Store(scales, source.scale);
  Store(scales + kTileHalves, source.min);
}

void PackBlock8(std::byte* data, int64_t cols, int64_t row, int64_t block,
                const WeightBlock8& source) {
  const auto lane = static_cast<int>(row % kWeightRowGroup);
  std::byte* tile = data + TileOffset(WeightFormat::kPacked8, cols, row, block);
  std::byte* codes = tile + lane * kQuad;
  for (int i = 0; i < kWeightBlock; ++i) {
    codes[i / kQuad * kQuadStride + i % kQuad] = static_cast<std::byte>(source.codes[i]);
  }
  Store(tile + kPacked8Codes + lane * sizeof(Half), source.scale);
}

void PackRow(std::byte* data, WeightFormat format, int64_t cols, int64_t row, const float* values) {
  CHECK_EQ(WeightTileCols(format), 1);
  const int64_t stride = WeightTileBytes(format);
  const int64_t width = stride / kWeightRowGroup;
  std::byte* to = data + TileOffset(format, cols, row, 0) + row % kWeightRowGroup * width;
  for (int64_t col = 0; col < cols; ++col, to += stride) {
    if (format == WeightFormat::kF32) {
      Store(to, values[col]);
    } else if (format == WeightFormat::kF16) {
      Store(to, ToHalf(values[col]));
    } else {
      Store(to, ToBFloat16(values[col]));
    }
  }
}

void UnpackRow(const WeightView& weight, int64_t row, float* values) {
  DCHECK_LT(row, weight.rows);
  const auto lane = static_cast<int>(row % kWeightRowGroup);
  const int tile_cols = WeightTileCols(weight.format);
  const int64_t stride = WeightTileBytes(weight.format);
  const std::byte* tile = weight.data + TileOffset(weight.format, weight.cols, row, 0);
  for (int64_t col = 0; col < weight.cols; col += tile_cols, tile += stride) {
    switch (weight.format) {
      case WeightFormat::kF32:
        values[col] = Load<float>(tile + lane * sizeof(float));
        break;
      case WeightFormat::kF16:
        values[col] = ToFloat(Load<Half>(tile + lane * sizeof(Half)));
        break;
      case WeightFormat::kBf16:
        values[col] = ToFloat(Load<BFloat16>(tile + lane * sizeof(BFloat16)));
        break;
      case WeightFormat::kPacked4:
        UnpackTile4(tile, lane, values + col);
        break;
      case WeightFormat::kPacked8:
        UnpackTile8(tile, lane, values + col);
        break;
    }
  }
}

}  // namespace condense
