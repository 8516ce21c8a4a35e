#include <algorithm>
#include <cstring>

#include "kernels/cpu/matmul_avx512_inl.h"
#include "kernels/cpu/matmul_kernels.h"

#define CONDENSE_AMX                                                        \
  __attribute__((                                                           \
      target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni," \
             "amx-tile,amx-int8")))
#define CONDENSE_AMX_INLINE CONDENSE_AMX __attribute__((always_inline)) inline

// Integer products of 16 tokens with 16 weight rows come from one tile instruction per block of
// 4-bit weights, which takes both parts of the activations with weights times 16 and weights, and
// from two per block of 8-bit weights. The float operations of a block are those of the AVX-512
// kernels, with the sums of 16 tokens in registers.

namespace condense::cpu {
namespace {

constexpr int kRows = kWeightRowGroup;
constexpr int kTokens = 16;       // rows of an activation tile
constexpr int kFewTokens = 7;     // below this the tile's empty rows cost more than it saves
constexpr int kChunkBlocks = 12;  // unpacked at a time: 14 KiB, which stay in the first-level cache
// Integer sums of a token and a weight row: both parts in one, or one each.
template <WeightFormat kFormat>
constexpr int kSums = kFormat == WeightFormat::kPacked4 ? 1 : 2;
// Bytes of a token, and of a weight row, that one tile instruction multiplies.
template <WeightFormat kFormat>
constexpr int kDepth = kCodeBlockBytes / kSums<kFormat>;
// Products pass through memory, which takes longer than the float operations of a block: they are
// begun some blocks ahead. No more than 4 KiB in all, or loads would wait for stores that only look
// like their own.
template <WeightFormat kFormat>
constexpr int kSlots = 4 / kSums<kFormat>;
template <WeightFormat kFormat>
constexpr int kAhead = kSlots<kFormat> - 1;

// Tile registers: sums, activations, weights, and the sums of the low parts where they are apart.
// Two sets, so that the products of one block need not wait for another's.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

template <WeightFormat kFormat>
TileConfig MakeTileConfig(int num_tokens) {
  TileConfig config;
  for (int set = 0; set < 8; set += 4) {
    for (int tile = set; tile < set + 4; ++tile) {
      config.row_bytes[tile] = 64;
      config.rows[tile] = static_cast<uint8_t>(num_tokens);
    }
    config.row_bytes[set + 1] = kDepth<kFormat>;
    config.rows[set + 2] = kDepth<kFormat> / 4;
  }
  return config;
}

// A few blocks of the row group, unpacked.
template <WeightFormat kFormat>
struct Panel {
  int num_blocks;
  alignas(64) std::byte codes[kChunkBlocks][kRows * kDepth<kFormat>];
  alignas(64) float scale[kChunkBlocks][kRows];
  alignas(64) float min[kChunkBlocks][kRows];
};

template <WeightFormat kFormat>
struct alignas(64) Dots {
  int32_t values[kSums<kFormat>][kTokens][kRows];
};

// The tile instructions are opaque to the compiler: memory must be as written around them.
CONDENSE_AMX_INLINE void MemoryFence() { asm volatile("" ::: "memory"); }

template <WeightFormat kFormat>
CONDENSE_AMX_INLINE void UnpackChunk(const std::byte* stream, int64_t first_block,
                                     int64_t num_blocks, Panel<kFormat>* panel) {
  panel->num_blocks = static_cast<int>(std::min<int64_t>(kChunkBlocks, num_blocks - first_block));
  const std::byte* from = stream + first_block * kTileBytes<kFormat>;
  for (int block = 0; block < panel->num_blocks; ++block, from += kTileBytes<kFormat>) {
    if constexpr (kFormat == WeightFormat::kPacked4) {
      const Tile tile = LoadTile<kFormat>(from);
#pragma GCC unroll 8
      for (int i = 0; i < kQuads; ++i) {
        _mm512_store_si512(panel->codes[block] + 64 * i, tile.bases[i]);
        _mm512_store_si512(panel->codes[block] + 64 * (kQuads + i), tile.quads[i]);
      }
      _mm512_store_ps(panel->scale[block], tile.scale);
      _mm512_store_ps(panel->min[block], tile.min);
    } else {
      std::memcpy(panel->codes[block], from, sizeof(panel->codes[block]));
      _mm512_store_ps(panel->scale[block], LoadHalves(from + sizeof(panel->codes[block])));
    }
  }
  MemoryFence();
}

// Begins the products of 16 tokens with one block, in the block's tile registers. Rows of the
// activation tile past the last token hold whatever lies behind it; nobody reads their products.
template <WeightFormat kFormat>
CONDENSE_AMX_INLINE void Multiply(int block, const int8_t* x, const std::byte* weights) {
  constexpr bool kOneSum = kSums<kFormat> == 1;
  if (block % 2 == 0) {
    _tile_zero(0);
    _tile_loadd(1, x, kCodeBlockBytes);
    _tile_loadd(2, weights, 64);
    if constexpr (kOneSum) {
      _tile_dpbsud(0, 1, 2);
    } else {
      _tile_dpbssd(0, 1, 2);
      _tile_zero(3);
      _tile_loadd(1, x + kWeightBlock, kCodeBlockBytes);
      _tile_dpbssd(3, 1, 2);
    }
  } else {
    _tile_zero(4);
    _tile_loadd(5, x, kCodeBlockBytes);
    _tile_loadd(6, weights, 64);
    if constexpr (kOneSum) {
      _tile_dpbsud(4, 5, 6);
    } else {
      _tile_dpbssd(4, 5, 6);
      _tile_zero(7);
      _tile_loadd(5, x + kWeightBlock, kCodeBlockBytes);
      _tile_dpbssd(7, 5, 6);
    }
  }
}

// Moves the products of a block to its slot in memory.
template <WeightFormat kFormat>
CONDENSE_AMX_INLINE void Keep(int block, Dots<kFormat>* slots) {
  constexpr bool kOneSum = kSums<kFormat> == 1;
  Dots<kFormat>& slot = slots[block % kSlots<kFormat>];
  if (block % 2 == 0) {
    _tile_stored(0, slot.values[0], 64);
    if constexpr (!kOneSum) _tile_stored(3, slot.values[1], 64);
  } else {
    _tile_stored(4, slot.values[0], 64);
    if constexpr (!kOneSum) _tile_stored(7, slot.values[1], 64);
  }
}

template <WeightFormat kFormat>
CONDENSE_AMX_INLINE __m512i LoadDot(const Dots<kFormat>& slot, int token) {
  const __m512i first = _mm512_load_si512(slot.values[0][token]);
  if constexpr (kSums<kFormat> == 1) return first;
  return AddParts(first, _mm512_load_si512(slot.values[kSums<kFormat> - 1][token]));
}

// Adds a chunk's blocks for kCount tokens, of which the first is at first_index in the chunk's
// first block. Meanwhile the chunk that lies at `upcoming`, if any, is fetched.
template <WeightFormat kFormat, int kCount>
CONDENSE_AMX_INLINE void AddChunk(const Panel<kFormat>& panel, const QuantizedTile& x,
                                  int64_t first_index, const std::byte* upcoming,
                                  Dots<kFormat>* slots, float* sums_in_memory) {
  __m512 sums[kCount];
#pragma GCC unroll 16
  for (int t = 0; t < kCount; ++t) sums[t] = _mm512_load_ps(sums_in_memory + t * kRows);
  const int64_t codes_stride = static_cast<int64_t>(x.rows) * kCodeBlockBytes;
  const int8_t* codes = x.codes + first_index * kCodeBlockBytes;
  int64_t index = first_index;
  for (int step = 0; step < panel.num_blocks + kAhead<kFormat> + 1; ++step) {
    if (step < panel.num_blocks) {
      Multiply<kFormat>(step, codes + step * codes_stride, panel.codes[step]);
    }
    const int kept = step - 1;
    if (kept >= 0 && kept < panel.num_blocks) Keep<kFormat>(kept, slots);
    const int block = kept - kAhead<kFormat>;
    if (block < 0) continue;
    if (upcoming != nullptr) PrefetchTile<kFormat>(upcoming + block * kTileBytes<kFormat>);
    MemoryFence();
    const Dots<kFormat>& dots = slots[block % kSlots<kFormat>];
    const __m512 scale = _mm512_load_ps(panel.scale[block]);
    const __m512 min =
        kFormat == WeightFormat::kPacked4 ? _mm512_load_ps(panel.min[block]) : _mm512_setzero_ps();
#pragma GCC unroll 16
    for (int t = 0; t < kCount; ++t) {
      sums[t] = AddProducts<kFormat>(sums[t], LoadDot<kFormat>(dots, t), scale, min,
                                     x.scale[index + t], x.scaled_sum[index + t]);
    }
    index += x.rows;
  }
#pragma GCC unroll 16
  for (int t = 0; t < kCount; ++t) _mm512_store_ps(sums_in_memory + t * kRows, sums[t]);
}

template <WeightFormat kFormat>
CONDENSE_AMX void PackedGroup(const GroupArgs& args) {
  if (args.num_tokens < kFewTokens) {
    kAvx512VnniMatmulKernels.by_format[static_cast<int>(kFormat)](args);
    return;
  }
  const QuantizedTile x = args.quantized;
  const int num_tokens = args.num_tokens;
  float* const sums = args.sums;
  std::memset(sums, 0, kActivationTile * kRows * sizeof(float));
  const TileConfig config =
      MakeTileConfig<kFormat>(num_tokens > kTokens / 2 ? kTokens : kTokens / 2);
  _tile_loadconfig(&config);
  Panel<kFormat> panel;
  Dots<kFormat> slots[kSlots<kFormat>];
  for (int64_t block = 0; block < x.blocks; block += kChunkBlocks) {
    UnpackChunk<kFormat>(args.stream, block, x.blocks, &panel);
    for (int token = 0; token < num_tokens; token += kTokens) {
      const int64_t index = block * x.rows + token;
      const std::byte* const upcoming =
          token == 0 ? args.stream + (block + panel.num_blocks) * kTileBytes<kFormat> : nullptr;
      if (num_tokens - token > kTokens / 2) {
        AddChunk<kFormat, kTokens>(panel, x, index, upcoming, slots, sums + token * kRows);
      } else {
        AddChunk<kFormat, kTokens / 2>(panel, x, index, upcoming, slots, sums + token * kRows);
      }
    }
  }
  _tile_release();
}

// Float weights have no tile instruction of the same precision.
template <WeightFormat kFormat>
void FloatGroup(const GroupArgs& args) {
  kAvx512VnniMatmulKernels.by_format[static_cast<int>(kFormat)](args);
}

}  // namespace

const MatmulKernels kAmxMatmulKernels = {{
    FloatGroup<WeightFormat::kF32>,
    FloatGroup<WeightFormat::kF16>,
    FloatGroup<WeightFormat::kBf16>,
    PackedGroup<WeightFormat::kPacked4>,
    PackedGroup<WeightFormat::kPacked8>,
}};

}  // namespace condense::cpu
