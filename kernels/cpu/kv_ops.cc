#include "kernels/cpu/kv_ops.h"

#include <cstdint>

#include "kernels/base/check.h"

namespace condense::cpu {
namespace {

constexpr int kMaxHeadDim = 256;
constexpr int64_t kMinParallelFloats = 16 * 1024;

void WriteEntry(const KvAppendArgs& args, const VectorKernels& kernels, int64_t source,
                const KvBlockRef& block, int slot) {
  const int head_dim = args.shape.head_dim;
  const int block_tokens = args.shape.block_tokens;
  std::byte* data = args.arena + int64_t{block.offset_64} * 64;
  Half* keys = reinterpret_cast<Half*>(data);
  Half* values = reinterpret_cast<Half*>(data + KvValuesOffset(block.format, args.shape));
  Half key[kMaxHeadDim];
  kernels.to_half(key, args.k + source * head_dim, head_dim);
  for (int d = 0; d < head_dim; ++d) keys[int64_t{d} * block_tokens + slot] = key[d];
  kernels.to_half(values + int64_t{slot} * head_dim, args.v + source * head_dim, head_dim);
}

// Backwards from the end of the list, where the newest entries are.
void AppendToList(const KvAppendArgs& args, const VectorKernels& kernels,
                  const KvSequenceArgs& sequence, int kv_head) {
  const KvList& list = sequence.lists[kv_head];
  int token = sequence.num_tokens - 1;
  for (int b = list.num_blocks - 1; b >= 0 && token >= 0; --b) {
    const KvBlockRef& block = list.blocks[b];
    CHECK(block.format == KvFormat::kK16V16);
    CHECK_LE(block.count, args.shape.block_tokens);
    for (int slot = block.count - 1; slot >= 0 && token >= 0; --slot, --token) {
      const int64_t row = sequence.first_row + token;
      WriteEntry(args, kernels, row * args.num_kv_heads + kv_head, block, slot);
    }
  }
  CHECK_LT(token, 0);
}

}  // namespace

void KvAppend(const KvAppendArgs& args, const VectorKernels& kernels, ThreadPool* pool) {
  CHECK_LE(args.shape.head_dim, kMaxHeadDim);
  const int units = args.num_sequences * args.num_kv_heads;
  const auto append = [&](int unit, int /*worker*/) {
    AppendToList(args, kernels, args.sequences[unit / args.num_kv_heads], unit % args.num_kv_heads);
  };
  int64_t tokens = 0;
  for (int s = 0; s < args.num_sequences; ++s) tokens += args.sequences[s].num_tokens;
  if (tokens * args.num_kv_heads * args.shape.head_dim >= kMinParallelFloats) {
    pool->Run(units, append);
  } else {
    for (int unit = 0; unit < units; ++unit) append(unit, 0);
  }
}

}  // namespace condense::cpu
