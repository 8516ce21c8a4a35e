#include "kernels/cpu/elementwise.h"

#include <algorithm>
#include <cstdint>

#include "kernels/base/check.h"

namespace condense::cpu {
namespace {

// Floats of one task: some microseconds of work, well above the price of a hand-over.
constexpr int64_t kTaskFloats = 16 * 1024;

// Calls function(begin, end) over [0, count), where one step costs `floats_per_step`; on one thread
// if that is small.
template <typename Function>
void ForRanges(ThreadPool* pool, int64_t count, int64_t floats_per_step, const Function& function) {
  const int64_t steps = std::max<int64_t>(1, kTaskFloats / std::max<int64_t>(1, floats_per_step));
  const int64_t tasks = (count + steps - 1) / steps;
  if (tasks <= 1) {
    function(0, count);
    return;
  }
  pool->Run(static_cast<int>(tasks), [&](int task, int /*worker*/) {
    function(task * steps, std::min(count, (task + 1) * steps));
  });
}

}  // namespace

void RmsNorm(const RmsNormArgs& args, const VectorKernels& kernels, ThreadPool* pool) {
  ForRanges(pool, args.rows, args.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t from = args.row_index != nullptr ? args.row_index[r] : r;
      kernels.rms_norm_row(args.x + from * args.cols, args.weight, args.cols, args.epsilon,
                           args.out + r * args.cols);
    }
  });
}

void Rope(const RopeArgs& args, const VectorKernels& kernels, ThreadPool* pool) {
  DCHECK_EQ(args.head_dim % 2, 0);
  const int64_t row_size = int64_t{args.num_heads} * args.head_dim;
  const auto rotate =
      args.pairing == RopePairing::kAdjacent ? kernels.rope_adjacent : kernels.rope_half_split;
  ForRanges(pool, args.num_tokens, row_size, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t angle = t * (args.head_dim / 2);
      for (int h = 0; h < args.num_heads; ++h) {
        rotate(args.x + t * row_size + int64_t{h} * args.head_dim, args.cos + angle,
               args.sin + angle, args.head_dim);
      }
    }
  });
}

void Gate(const GateArgs& args, const VectorKernels& kernels, ThreadPool* pool) {
  const auto gate =
      args.activation == Activation::kSilu ? kernels.gate_silu : kernels.gate_gelu_tanh;
  ForRanges(pool, args.size, 1, [&](int64_t begin, int64_t end) {
    gate(args.gate + begin, args.up + begin, end - begin);
  });
}

void Add(const AddArgs& args, const VectorKernels& kernels, ThreadPool* pool) {
  ForRanges(pool, args.size, 1, [&](int64_t begin, int64_t end) {
    kernels.add(args.x + begin, args.y + begin, end - begin);
  });
}

}  // namespace condense::cpu
