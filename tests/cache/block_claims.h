#ifndef CONDENSE_TESTS_CACHE_BLOCK_CLAIMS_H_
#define CONDENSE_TESTS_CACHE_BLOCK_CLAIMS_H_

// Which blocks of an arena are whose, kept naively: what a cache must agree with.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace condense {

// Owners are numbers, never used twice. All blocks of a slab have one size while it is in use.
class BlockClaims {
 public:
  BlockClaims(int64_t num_slabs, int64_t slab_bytes) : slab_bytes_(slab_bytes), slabs_(num_slabs) {}

  // Fails the test if any byte of the block belongs to somebody.
  void Claim(int64_t owner, int64_t offset, int64_t bytes) {
    ASSERT_LE(offset + bytes, static_cast<int64_t>(slabs_.size()) * slab_bytes_);
    Slab& slab = slabs_[offset / slab_bytes_];
    if (slab.used == 0) {
      slab.block_bytes = bytes;
      slab.owners.assign(PerSlab(bytes), kNobody);
    }
    ASSERT_EQ(slab.block_bytes, bytes) << "blocks of two sizes in one slab";
    ASSERT_EQ(offset % slab_bytes_ % bytes, 0);
    const int64_t index = offset % slab_bytes_ / bytes;
    ASSERT_LT(index, PerSlab(bytes));
    ASSERT_EQ(slab.owners[index], kNobody) << "block handed out twice";
    slab.owners[index] = owner;
    ++slab.used;
  }
  void Drop(int64_t owner, int64_t offset) {
    Slab& slab = slabs_[offset / slab_bytes_];
    ASSERT_GT(slab.used, 0);
    const int64_t index = offset % slab_bytes_ / slab.block_bytes;
    ASSERT_EQ(slab.owners[index], owner);
    slab.owners[index] = kNobody;
    --slab.used;
  }

  int64_t free_slabs() const {
    return std::count_if(slabs_.begin(), slabs_.end(),
                         [](const Slab& slab) { return slab.used == 0; });
  }
  int64_t slab_bytes_in_use() const {
    return (static_cast<int64_t>(slabs_.size()) - free_slabs()) * slab_bytes_;
  }
  // Slabs that `blocks` more of this size need beside those that have room.
  int64_t SlabsFor(int64_t blocks, int64_t bytes) const {
    for (const Slab& slab : slabs_) {
      if (slab.used > 0 && slab.block_bytes == bytes) blocks -= PerSlab(bytes) - slab.used;
    }
    return blocks <= 0 ? 0 : (blocks + PerSlab(bytes) - 1) / PerSlab(bytes);
  }

 private:
  static constexpr int64_t kNobody = -1;
  struct Slab {
    int64_t block_bytes = 0;
    int64_t used = 0;
    std::vector<int64_t> owners;  // by block
  };

  int64_t PerSlab(int64_t bytes) const { return std::min<int64_t>(256, slab_bytes_ / bytes); }

  const int64_t slab_bytes_;
  std::vector<Slab> slabs_;
};

}  // namespace condense

#endif  // CONDENSE_TESTS_CACHE_BLOCK_CLAIMS_H_
