#include "kernels/cpu/matmul.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/quantize_activations.h"

namespace condense::cpu {
namespace {

// Work below which waking the other threads costs more than it saves.
constexpr int64_t kSmallQuantization = 8 * 1024;  // values
// Enough slices that a thread which loses its core for a while does not hold up the op, and each
// long enough that taking it costs nothing and its weights stream.
constexpr int64_t kSliceCost = 48 * 1024;  // bytes of weights, times tokens / 4
constexpr int kMaxSlicesPerThread = 8;

bool IsPacked(WeightFormat format) {
  return format == WeightFormat::kPacked4 || format == WeightFormat::kPacked8;
}

int32_t NumGroups(const WeightView& weight) {
  return (weight.rows + kWeightRowGroup - 1) / kWeightRowGroup;
}

int64_t GroupBytes(const WeightView& weight) {
  return WeightTileBytes(weight.format) * (weight.cols / WeightTileCols(weight.format));
}

void Quantize(const MatmulArgs& args, CpuIsa isa, ThreadPool* pool,
              const QuantizedActivations& to) {
  const int32_t cols = args.outputs[0].weight.cols;
  const bool small = static_cast<int64_t>(args.rows) * cols < kSmallQuantization;
  const int slices = small ? 1 : std::min(args.rows, 4 * pool->num_threads());
  pool->Run(slices, [&](int slice, int) {
    const auto first = static_cast<int32_t>(static_cast<int64_t>(args.rows) * slice / slices);
    const auto last = static_cast<int32_t>(static_cast<int64_t>(args.rows) * (slice + 1) / slices);
    for (int32_t row = first; row < last; ++row) {
      QuantizeRow(args.x + static_cast<int64_t>(row) * cols, row, isa, to);
    }
  });
}

// Row groups whose sums are written together, so that a row of y is touched in pieces of several
// cache lines.
constexpr int kGroupBatch = 4;
constexpr int kTileSums = kActivationTile * kWeightRowGroup;

// y[row] = sums (+ bias) (+ y) for the rows [first_row, first_row + num_rows) of one token.
void StoreRows(const MatmulOutput& output, int32_t first_row, int32_t num_rows, const float* sums,
               float* y) {
  if (output.bias == nullptr && !output.accumulate) {
    std::memcpy(y, sums, num_rows * sizeof(float));
    return;
  }
  for (int32_t row = 0; row < num_rows; ++row) {
    float value = sums[row];
    if (output.bias != nullptr) value += output.bias[first_row + row];
    if (output.accumulate) value += y[row];
    y[row] = value;
  }
}

// The sums of row groups [first, last), kTileSums apart, go to y [T, N], without the rows that only
// fill a group up.
void StoreGroups(const MatmulOutput& output, int32_t first, int32_t last, int32_t first_token,
                 int32_t num_tokens, const float* sums) {
  for (int32_t token = 0; token < num_tokens; ++token) {
    float* y = output.y + static_cast<int64_t>(first_token + token) * output.weight.rows;
    for (int32_t group = first; group < last; ++group) {
      const int32_t first_row = group * kWeightRowGroup;
      const float* from = sums + (group - first) * kTileSums + token * kWeightRowGroup;
      if (output.weight.rows - first_row >= kWeightRowGroup) {
        StoreRows(output, first_row, kWeightRowGroup, from, y + first_row);
      } else {
        StoreRows(output, first_row, output.weight.rows - first_row, from, y + first_row);
      }
    }
  }
}

// Row groups [first, last) of one output for all tokens. Tokens outermost: a tile of activations is
// read from the near cache for every row group, and so are the slice's weights from the second tile
// on.
void MultiplyGroups(const MatmulArgs& args, const MatmulOutput& output, int32_t first, int32_t last,
                    GroupKernel kernel, const QuantizedActivations& quantized) {
  alignas(64) float sums[kGroupBatch * kTileSums];
  const bool packed = IsPacked(output.weight.format);
  const int64_t group_bytes = GroupBytes(output.weight);
  GroupArgs group_args;
  group_args.cols = output.weight.cols;
  for (int32_t token = 0; token < args.rows; token += kActivationTile) {
    group_args.num_tokens = std::min(kActivationTile, args.rows - token);
    group_args.x = args.x + static_cast<int64_t>(token) * output.weight.cols;
    if (packed) group_args.quantized = quantized.Tile(token);
    for (int32_t batch = first; batch < last; batch += kGroupBatch) {
      const int32_t batch_end = std::min(batch + kGroupBatch, last);
      for (int32_t group = batch; group < batch_end; ++group) {
        group_args.stream = output.weight.data + group * group_bytes;
        group_args.sums = sums + (group - batch) * kTileSums;
        kernel(group_args);
      }
      StoreGroups(output, batch, batch_end, token, group_args.num_tokens, sums);
    }
  }
}

// Row groups of all outputs, numbered through, are cut into slices of neighbours.
struct Slicing {
  int32_t num_groups = 0;
  int num_slices = 0;

  int32_t Begin(int slice) const {
    return static_cast<int32_t>(static_cast<int64_t>(num_groups) * slice / num_slices);
  }
};

Slicing SliceGroups(const MatmulArgs& args, int num_threads) {
  Slicing slicing;
  int64_t bytes = 0;
  for (int i = 0; i < args.num_outputs; ++i) {
    const WeightView& weight = args.outputs[i].weight;
    slicing.num_groups += NumGroups(weight);
    bytes += NumGroups(weight) * GroupBytes(weight);
  }
  const int64_t cost = bytes * std::max(1, args.rows / 4);
  const int64_t per_thread =
      std::clamp<int64_t>(cost / (kSliceCost * num_threads), 1, kMaxSlicesPerThread);
  slicing.num_slices =
      static_cast<int>(std::min<int64_t>(slicing.num_groups, per_thread * num_threads));
  return slicing;
}

}  // namespace

std::byte* MatmulScratch::Reserve(size_t size_bytes) {
  if (size_bytes > size_bytes_) {
    const size_t rounded = (size_bytes + 63) / 64 * 64;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, rounded)));
    CHECK(data_ != nullptr);
    size_bytes_ = rounded;
  }
  return data_.get();
}

const MatmulKernels& MatmulKernelsFor(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kScalar:
      return kScalarMatmulKernels;
    case CpuIsa::kAvx2:
      return kAvx2MatmulKernels;
    case CpuIsa::kAvx512Vnni:
      return CpuHasAmx() ? kAmxMatmulKernels : kAvx512VnniMatmulKernels;
  }
  CheckFailed(__FILE__, __LINE__, "instruction set without kernels");
}

void Matmul(const MatmulArgs& args, CpuIsa isa, ThreadPool* pool, MatmulScratch* scratch) {
  CHECK(args.num_outputs >= 1 && args.num_outputs <= kMaxMatmulOutputs);
  if (args.rows <= 0) return;
  const int32_t cols = args.outputs[0].weight.cols;
  bool any_packed = false;
  for (int i = 0; i < args.num_outputs; ++i) {
    CHECK_EQ(args.outputs[i].weight.cols, cols);
    any_packed = any_packed || IsPacked(args.outputs[i].weight.format);
  }
  QuantizedActivations quantized;
  if (any_packed) {
    CHECK_EQ(cols % kWeightBlock, 0);
    std::byte* memory = scratch->Reserve(QuantizedActivationsBytes(args.rows, cols));
    quantized = PlaceQuantizedActivations(memory, args.rows, cols);
    Quantize(args, isa, pool, quantized);
  }
  const MatmulKernels& kernels = MatmulKernelsFor(isa);
  const Slicing slicing = SliceGroups(args, pool->num_threads());
  pool->Run(slicing.num_slices, [&](int slice, int) {
    int32_t begin = slicing.Begin(slice);
    int32_t end = slicing.Begin(slice + 1);
    for (int i = 0; i < args.num_outputs && end > 0; ++i) {
      const MatmulOutput& output = args.outputs[i];
      const int32_t groups = NumGroups(output.weight);
      const GroupKernel kernel = kernels.by_format[static_cast<int>(output.weight.format)];
      MultiplyGroups(args, output, std::max(begin, 0), std::min(end, groups), kernel, quantized);
      begin -= groups;
      end -= groups;
    }
  });
}

void Embed(const EmbedArgs& args, ThreadPool* pool) {
  const int32_t cols = args.table.cols;
  const bool small = static_cast<int64_t>(args.num_tokens) * cols < kSmallQuantization;
  const int slices = small ? 1 : std::min(args.num_tokens, 4 * pool->num_threads());
  pool->Run(slices, [&](int slice, int) {
    const int64_t first = static_cast<int64_t>(args.num_tokens) * slice / slices;
    const int64_t last = static_cast<int64_t>(args.num_tokens) * (slice + 1) / slices;
    for (int64_t token = first; token < last; ++token) {
      float* out = args.out + token * cols;
      UnpackRow(args.table, args.tokens[token], out);
      if (args.scale == 1.0f) continue;
      for (int32_t col = 0; col < cols; ++col) out[col] *= args.scale;
    }
  });
}

}  // namespace condense::cpu
