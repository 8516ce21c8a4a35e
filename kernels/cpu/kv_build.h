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
  };
  // What a source block holds, decoded when first asked.
  struct DecodedBlock {
    int32_t first_entry = 0;
    float* keys = nullptr;    // [count, D]
    float* values = nullptr;  // [count, D]
  };
  // One new block while it is filled.
  struct Target {
    KvBlockRef ref;
    KvBlockPieces pieces;
    std::byte* data = nullptr;
  };

  void BuildBlock(const KvBuildArgs& args, const KvBlockRef& block, int first_entry);
  void BuildKey(const KvBuildArgs& args, const Target& target, const KvBuildEntry& entry, int slot);
  void BuildValue(const KvBuildArgs& args, const Target& target, const KvBuildEntry& entry,
                  int slot);
  // The only member with a weight, if it has weight 1; else null.
  const Source* SingleSource(const KvBuildArgs& args, const KvBuildEntry& entry,
                             float KvBuildMember::*weight) const;
  static const KvBlockRef& BlockOf(const KvBuildArgs& args, const Source& source) {
    return args.sources[source.block].block;
  }
  static int64_t PositionOf(const KvBuildArgs& args, const Source& source) {
    return KvSourcePosition({args.arena, args.shape, nullptr, {}}, args.sources[source.block],
                            source.slot);
  }
  // [D], as exact as stored: keys after RoPE, values untransformed.
  const float* KeyOf(const KvBuildArgs& args, const Source& source);
  const float* ValueOf(const KvBuildArgs& args, const Source& source);
  // The side arrays of a new block.
  static void WriteSideArrays(const KvBuildArgs& args, const Target& target, int first_entry);
  // Puts the codes of all slots into their planes.
  void PackKeys(const KvBuildArgs& args, const Target& target) const;
  void PackValues(const KvBuildArgs& args, const Target& target) const;

  const VectorKernels* const kernels_;
  KvDecoder decoder_;
  std::vector<Source> sources_;  // of all source entries in order
  std::vector<DecodedBlock> blocks_;
  FloatScratch key_floats_, value_floats_;
  float* keys_ = nullptr;  // in the scratch, while Run runs: [sources, D]
  float* values_ = nullptr;
  std::vector<uint8_t> key_codes_;    // [D, B]
  std::vector<uint8_t> value_codes_;  // [B, D]
};

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_KV_BUILD_H_
