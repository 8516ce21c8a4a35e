#ifndef CONDENSE_KERNELS_CPU_KV_BLOCK_READER_H_
#define CONDENSE_KERNELS_CPU_KV_BLOCK_READER_H_

// Logits and weighted values of one block, whatever its format: which inner loop reads which bytes.

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/mean_term.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/kv_op_args.h"

namespace condense::cpu {

// The queries of a tile, multiplied by scale * log2(e).
struct TileQueries {
  int32_t rows = 0;
  const float* plain = nullptr;    // [rows, D]
  const float* rotated = nullptr;  // [rows, D], Hadamard; null when no block needs it
  // When some block is centred: see MeanTermArgs.
  const MeanHead* mean = nullptr;
  const float* angles = nullptr;
  const float* mean_coefficients = nullptr;
  float* turned_coefficients = nullptr;  // scratch of the reader
};

// One thread, one attention call. Logits are in units of log2.
class KvBlockReader {
 public:
  // Both outlive the reader.
  KvBlockReader(const VectorKernels* kernels, const AttentionArgs* args)
      : kernels_(kernels), args_(args) {}

  // What is read soon, so that it is fetched meanwhile.
  struct Ahead {
    const KvBlockRef* block = nullptr;
    bool values = false;  // else its keys
  };

  // logits[r * stride + e] for all slots e of the block, used or not, and all rows.
  void Logits(const KvBlockRef& block, const Ahead& ahead, const TileQueries& queries,
              float* logits, int64_t stride);

  // What the weights [rows, stride] of the entries [first, first + entries) add to the rows' sums.
  struct Sums {
    int32_t rows = 0;
    const float* weights = nullptr;
    int64_t weight_stride = 0;
    float* plain = nullptr;    // [rows, D]
    float* rotated = nullptr;  // [rows, D], of values that are stored transformed
  };
  void AddValues(const KvBlockRef& block, const Ahead& ahead, int first, int entries,
                 const Sums& sums);

 private:
  const KvBlockPieces& PiecesOf(const KvBlockRef& block);
  const std::byte* DataOf(const KvBlockRef& block) const;
  // Fetches the small arrays, and returns where the large one begins.
  const std::byte* Fetch(const Ahead& ahead) const;
  void AddMeanTerm(const KvBlockRef& block, const TileQueries& queries, float* logits,
                   int64_t stride) const;
  // For entries whose distance from the block's base is out of the angle tables' reach.
  void AddFarMeanTerm(const KvBlockRef& block, int64_t base, const TileQueries& queries,
                      float* logits, int64_t stride) const;

  const VectorKernels* kernels_;
  const AttentionArgs* args_;
  // Of the block that was asked last: neighbours mostly share their format.
  KvFormat format_ = KvFormat::kK16V16;
  KvBlockFlags flags_ = 0;
  KvBlockPieces pieces_;  // valid when its bytes are not 0
};

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_KV_BLOCK_READER_H_
