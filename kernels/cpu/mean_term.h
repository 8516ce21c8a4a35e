#ifndef CONDENSE_KERNELS_CPU_MEAN_TERM_H_
#define CONDENSE_KERNELS_CPU_MEAN_TERM_H_

// What centring took from the keys, prepared for one attention call: which frequency pairs of the
// mean keys count, and the angles of small distances.

#include <cstdint>
#include <vector>

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/kv_op_args.h"

namespace condense::cpu {

// One KV head's mean key.
struct MeanHead {
  const float* mean = nullptr;  // [D]
  int32_t num_pairs = 0;        // frequency pairs that are not zero
  std::vector<int32_t> pairs;   // which, ascending, then zeros: a multiple of 16
};

// Filled by the thread that calls Fill, read by all until the next Fill. Keeps its scratch.
class MeanTables {
 public:
  explicit MeanTables(const VectorKernels* kernels) : kernels_(kernels) {}

  // key_mean [G, D]. `gaps`: whether some centred block holds distances.
  void Fill(const float* key_mean, int num_kv_heads, const PositionTable& positions,
            const KvBlockShape& shape, bool gaps);

  const MeanHead& head(int kv_head) const { return heads_[kv_head]; }
  const float* angles() const { return angles_; }  // see MeanTermArgs

 private:
  void FillAngles(const PositionTable& positions, const KvBlockShape& shape, bool gaps);

  const VectorKernels* const kernels_;
  std::vector<MeanHead> heads_;
  FloatScratch angle_floats_;
  float* angles_ = nullptr;
};

// coefficients [rows, 2, pair_stride] of the head's pairs for q [rows, D].
void FillMeanCoefficients(const MeanHead& head, int head_dim, RopePairing pairing, const float* q,
                          int rows, float* coefficients);

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_MEAN_TERM_H_
