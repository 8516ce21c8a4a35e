#ifndef CONDENSE_KERNELS_CPU_KV_BUILD_H_
#define CONDENSE_KERNELS_CPU_KV_BUILD_H_

// The kv-build op on the CPU: new blocks of one unit out of old ones, entry by entry.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/kv_decode.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/kv_op_args.h"

namespace condense::cpu {

// One thread at a time, which need not be the one that made it. Keeps its scratch between calls.
class KvBuilder {
 public:
  explicit KvBuilder(const VectorKernels* kernels) : kernels_(kernels), decoder_(kernels) {}

  // REQUIRES: head_dim <= 256; what the flags of the new blocks leave no room for (biases,
  // distances above 65,535, gaps in a run) does not occur.
  void Run(const KvBuildArgs& args);

 private:
  struct Source {
    int32_t block = 0;  // index into KvBuildArgs::sources
    int32_t slot = 0;
    int32_t position = 0;
  };
  // What a source block is decoded to when it is first asked for: [count, D] each.
  enum DecodedKind { kKeys, kValues, kKeyLevels, kValueLevels, kNumDecoded };
  struct DecodedBlock {
    int32_t first_entry = 0;
    bool ready[kNumDecoded] = {};
  };
  // One new block while it is filled.
  struct Target {
    KvBlockRef ref;
    KvBlockPieces pieces;
    std::byte* data = nullptr;
  };

  void BuildBlock(const KvBuildArgs& args, const KvBlockRef& block, int first_entry);
  void BuildKeys(const KvBuildArgs& args, const Target& target, const KvBuildEntry* entries);
  void BuildValues(const KvBuildArgs& args, const Target& target, const KvBuildEntry* entries);
  // The weighted sum of an entry's members; `single`: see SingleSource.
  void SumKey(const KvBuildArgs& args, const KvBuildEntry& entry, const Source* single, float* key);
  void SumValue(const KvBuildArgs& args, const KvBuildEntry& entry, const Source* single,
                float* value);
  // The only member with a weight, if it has weight 1; else null.
  const Source* SingleSource(const KvBuildArgs& args, const KvBuildEntry& entry,
                             float KvBuildMember::*weight) const;
  // Whether the source's narrow key can be copied.
  bool KeysAlike(const KvBuildArgs& args, const Source& source, const KvBlockRef& to,
                 int64_t position) const;
  static const KvBlockRef& BlockOf(const KvBuildArgs& args, const Source& source) {
    return args.sources[source.block].block;
  }
  static Half ScaleOf(const KvBuildArgs& args, const Source& source, bool key);
  // [D]; keys and values as exact as stored, keys after RoPE, values untransformed.
  const float* Decoded(const KvBuildArgs& args, const Source& source, DecodedKind kind);
  // x becomes levels in units of the scale that is returned.
  Half ToLevels(int bits, int head_dim, float* x) const;
  void PackValues(const KvBuildArgs& args, const Target& target) const;
  // The side arrays of a new block.
  static void WriteSideArrays(const KvBuildArgs& args, const Target& target, int first_entry);

  const VectorKernels* const kernels_;
  KvDecoder decoder_;
  std::vector<Source> sources_;  // of all source entries in order
  std::vector<DecodedBlock> blocks_;
  FloatScratch decoded_floats_, row_floats_, column_floats_;
  // In the scratch, while Run runs.
  float* decoded_ = nullptr;  // [kNumDecoded, sources, D]
  float* rows_ = nullptr;     // [B, D]: the vectors or levels of one new block
  float* columns_ = nullptr;  // [D, B]
};

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_KV_BUILD_H_
