#ifndef CONDENSE_TESTS_KERNELS_UNIT_ARENA_H_
#define CONDENSE_TESTS_KERNELS_UNIT_ARENA_H_

// One unit's blocks in an arena, as inputs of the ops that read, build and evaluate.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/kernels/backend_fixture.h"
#include "tests/support/kv_lists.h"
#include "tests/support/reference_kv.h"

namespace condense {

inline constexpr int kNumPositions = KvLists::kNumPositions;
inline constexpr KvBlockFlags kEverything = kKvBias | kKvPosition | kKvCount | kKvCentred;

// 16-bit or other sources, then room for what is built; positions and mean key of the unit.
class UnitArena {
 public:
  UnitArena(const KvBlockShape& shape, const std::vector<int>& counts,
            const std::vector<KvBlockKind>& kinds, RopePairing pairing = RopePairing::kHalfSplit);

  const KvBlockShape& shape() const { return lists_.shape(); }
  const KvList& list() const { return lists_.sequence(0).lists[0]; }
  const std::vector<KvBuildSource>& sources() const { return sources_; }
  std::vector<float>& mean() { return mean_; }
  PositionTable table() const { return {cos_.data(), sin_.data(), kNumPositions, pairing_}; }

  // A block at the end of the arena.
  KvBlockRef AddBlock(KvFormat format, KvBlockFlags flags, int count) {
    const KvBlockRef block = {static_cast<uint32_t>(image_.size() / 64), format, flags,
                              static_cast<uint16_t>(count)};
    image_.resize(image_.size() + KvBlockBytes(format, shape(), flags), std::byte{0x7e});
    return block;
  }
  // Makes every value of the list NaN, or its scale.
  void PoisonValues();
  void SetEntry(const KvBlockRef& block, int slot, const std::vector<float>& key,
                const std::vector<float>& value);
  std::vector<float> Rotated(const std::vector<float>& x, int64_t position) const {
    std::vector<double> turned(x.begin(), x.end());
    ReferenceRotate(table(), position, false, &turned);
    return {turned.begin(), turned.end()};
  }

  // The entry as `image` holds it.
  ReferenceEntry Read(const std::vector<std::byte>& image, const KvBlockRef& block,
                      int slot) const {
    return ReadReferenceEntry(image.data(), block, shape(), mean_.data(), table(), slot);
  }
  const std::vector<std::byte>& image() const { return image_; }

  std::vector<std::byte> Build(Backend* backend, const std::vector<KvBuildMember>& members,
                               const std::vector<KvBuildEntry>& entries,
                               const std::vector<KvBlockRef>& blocks) const;

  struct Contents {
    std::vector<float> keys, values, biases;
    std::vector<int32_t> positions, counts;
  };
  Contents ReadAll(Backend* backend) const;

  struct Evaluation {
    std::vector<float> out, log_sum_exp, mass;
  };
  Evaluation Evaluate(Backend* backend, const std::vector<std::byte>& image, const KvList& list,
                      int num_queries, int group, bool with_out = true) const;

 private:
  KvLists lists_;
  RopePairing pairing_;
  std::vector<std::byte> image_;
  std::vector<KvBuildSource> sources_;
  std::vector<float> cos_, sin_, mean_;
};

}  // namespace condense

#endif  // CONDENSE_TESTS_KERNELS_UNIT_ARENA_H_
