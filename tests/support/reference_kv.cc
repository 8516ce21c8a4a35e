#include "tests/support/reference_kv.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/hadamard.h"
#include "kernels/kv_codes.h"

namespace condense {
namespace {

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

double LoadHalf(const std::byte* from) { return ToFloat(Load<Half>(from)); }

// `n` bits of a plane at code `col` of row `row`.
int ReadBits(const std::byte* plane, int bits, int64_t cols, int64_t row, int64_t col) {
  const int64_t group = col / 32;
  const int64_t codes = std::min<int64_t>(32, cols - 32 * group);
  const int64_t bytes = codes * bits / 8;
  const int64_t i = col % 32;
  const int byte = std::to_integer<int>(plane[(row * cols + 32 * group) * bits / 8 + i % bytes]);
  return byte >> (i / bytes * bits) & ((1 << bits) - 1);
}

double ReadLevel(const std::byte* lower, const std::byte* upper, int bits, int64_t cols,
                 int64_t row, int64_t col) {
  switch (bits) {
    case 8:
      return static_cast<int8_t>(ReadBits(lower, 8, cols, row, col));
    case 6:
      return 2 * (ReadBits(lower, 4, cols, row, col) + 16 * ReadBits(upper, 2, cols, row, col)) -
             63;
    case 4:
      return 2 * ReadBits(lower, 4, cols, row, col) - 15;
    case 3:
      return 2 * (ReadBits(lower, 2, cols, row, col) + 4 * ReadBits(upper, 1, cols, row, col)) - 7;
    default:
      CheckFailed(__FILE__, __LINE__, "width without codes");
  }
}

std::vector<double> ReadKey(const std::byte* data, const KvBlockPieces& pieces, int bits,
                            const KvBlockShape& shape, int entry) {
  std::vector<double> key(shape.head_dim);
  for (int d = 0; d < shape.head_dim; ++d) {
    key[d] = bits == 16
                 ? LoadHalf(data + pieces.keys + 2 * (int64_t{d} * shape.block_tokens + entry))
                 : ReadLevel(data + pieces.keys, data + pieces.key_upper, bits, shape.block_tokens,
                             d, entry) *
                       LoadHalf(data + pieces.key_scales + 2 * entry);
  }
  return key;
}

std::vector<double> ReadValue(const std::byte* data, const KvBlockPieces& pieces, int bits,
                              const KvBlockShape& shape, int entry) {
  std::vector<double> value(shape.head_dim);
  for (int d = 0; d < shape.head_dim; ++d) {
    value[d] = bits == 16
                   ? LoadHalf(data + pieces.values + 2 * (int64_t{entry} * shape.head_dim + d))
                   : ReadLevel(data + pieces.values, data + pieces.value_upper, bits,
                               shape.head_dim, entry, d) *
                         LoadHalf(data + pieces.value_scales + 2 * entry);
  }
  return value;
}

}  // namespace

void ReferenceRotate(const PositionTable& positions, int64_t position, bool backwards,
                     std::vector<double>* x) {
  CHECK_LT(position, positions.num_positions);
  const int pairs = static_cast<int>(x->size()) / 2;
  const bool adjacent = positions.pairing == RopePairing::kAdjacent;
  for (int i = 0; i < pairs; ++i) {
    double& first = (*x)[adjacent ? 2 * i : i];
    double& second = (*x)[adjacent ? 2 * i + 1 : i + pairs];
    const double cos = positions.cos[position * pairs + i];
    const double sin = positions.sin[position * pairs + i] * (backwards ? -1.0 : 1.0);
    const double rotated = first * cos - second * sin;
    second = second * cos + first * sin;
    first = rotated;
  }
}

std::vector<double> ReferenceHadamard(const std::vector<double>& x) {
  const int n = static_cast<int>(x.size());
  const int width = HadamardWidth(n);
  // H of 2m elements is [H H; H -H] of m.
  std::vector<double> out = x;
  for (int m = 1; m < width; m *= 2) {
    const std::vector<double> in = out;
    for (int i = 0; i < n; ++i) out[i] = i / m % 2 == 0 ? in[i] + in[i + m] : in[i - m] - in[i];
  }
  for (double& element : out) element /= std::sqrt(static_cast<double>(width));
  return out;
}

ReferenceEntry ReadReferenceEntry(const std::byte* arena, const KvBlockRef& block,
                                  const KvBlockShape& shape, const float* mean,
                                  const PositionTable& positions, int entry) {
  const std::byte* data = arena + int64_t{block.offset_64} * 64;
  const KvBlockPieces pieces = KvPieces(block.format, block.flags, shape);
  ReferenceEntry read;
  read.key = ReadKey(data, pieces, KvKeyBits(block.format), shape, entry);
  read.value = ReadValue(data, pieces, KvValueBits(block.format), shape, entry);
  if (KvKeysRotated(block.format)) read.key = ReferenceHadamard(read.key);
  if (KvValuesRotated(block.format)) read.value = ReferenceHadamard(read.value);
  if ((block.flags & kKvBias) != 0) read.bias = LoadHalf(data + pieces.bias + 2 * entry);
  if ((block.flags & kKvCount) != 0) read.count = Load<uint8_t>(data + pieces.counts + entry);
  if ((block.flags & (kKvPosition | kKvRun)) != 0) {
    read.position = Load<uint32_t>(data + pieces.base);
    read.position +=
        (block.flags & kKvRun) != 0 ? entry : Load<uint16_t>(data + pieces.distances + 2 * entry);
  }
  if ((block.flags & kKvCentred) != 0) {
    std::vector<double> centre(mean, mean + shape.head_dim);
    ReferenceRotate(positions, read.position, false, &centre);
    for (int d = 0; d < shape.head_dim; ++d) read.key[d] += centre[d];
  }
  return read;
}

namespace {

std::vector<uint8_t> StoredVector(const std::byte* lower, const std::byte* upper, int bits,
                                  int64_t cols, int64_t first, int64_t step, int head_dim) {
  const KvCodePlanes planes{const_cast<std::byte*>(lower), const_cast<std::byte*>(upper)};
  std::vector<uint8_t> stored;
  for (int64_t i = first; i < first + head_dim * step; i += step) {
    if (bits == 16) {
      const auto half = Load<uint16_t>(lower + 2 * i);
      stored.push_back(static_cast<uint8_t>(half));
      stored.push_back(static_cast<uint8_t>(half >> 8));
    } else {
      stored.push_back(KvReadCode(planes, bits, cols, i / cols, i % cols));
    }
  }
  return stored;
}

}  // namespace

StoredEntry ReadStoredEntry(const std::byte* arena, const KvBlockRef& block,
                            const KvBlockShape& shape, int entry) {
  const std::byte* data = arena + int64_t{block.offset_64} * 64;
  const KvBlockPieces pieces = KvPieces(block.format, block.flags, shape);
  const int key_bits = KvKeyBits(block.format), value_bits = KvValueBits(block.format);
  StoredEntry stored;
  stored.key = StoredVector(data + pieces.keys, data + pieces.key_upper, key_bits,
                            shape.block_tokens, entry, shape.block_tokens, shape.head_dim);
  stored.value = StoredVector(data + pieces.values, data + pieces.value_upper, value_bits,
                              shape.head_dim, int64_t{entry} * shape.head_dim, 1, shape.head_dim);
  if (key_bits < 16) stored.key_scale = Load<uint16_t>(data + pieces.key_scales + 2 * entry);
  if (value_bits < 16) stored.value_scale = Load<uint16_t>(data + pieces.value_scales + 2 * entry);
  return stored;
}

void ReferenceKvRead(const KvReadArgs& args) {
  const int head_dim = args.shape.head_dim;
  int64_t n = 0;
  for (int s = 0; s < args.num_sources; ++s) {
    for (int slot = 0; slot < args.sources[s].block.count; ++slot, ++n) {
      const ReferenceEntry entry = ReadReferenceEntry(args.arena, args.sources[s].block, args.shape,
                                                      args.key_mean, args.positions, slot);
      for (int d = 0; d < head_dim; ++d) {
        if (args.keys != nullptr) args.keys[n * head_dim + d] = static_cast<float>(entry.key[d]);
        if (args.values != nullptr) {
          args.values[n * head_dim + d] = static_cast<float>(entry.value[d]);
        }
      }
      if (args.positions_out != nullptr) {
        args.positions_out[n] = static_cast<int32_t>(
            entry.position >= 0 ? entry.position : args.sources[s].first_position + slot);
      }
      if (args.biases != nullptr) args.biases[n] = static_cast<float>(entry.bias);
      if (args.counts != nullptr) args.counts[n] = entry.count;
    }
  }
}

namespace {

struct SourceSpot {
  KvBlockRef block;
  int slot = 0;
  int64_t position = 0;
};

std::vector<SourceSpot> ListSources(const KvBuildArgs& args) {
  std::vector<SourceSpot> spots;
  for (int s = 0; s < args.num_sources; ++s) {
    const KvBlockRef& block = args.sources[s].block;
    for (int slot = 0; slot < block.count; ++slot) {
      const ReferenceEntry entry =
          ReadReferenceEntry(args.arena, block, args.shape, args.key_mean, args.positions, slot);
      spots.push_back(
          {block, slot,
           entry.position >= 0 ? entry.position : args.sources[s].first_position + slot});
    }
  }
  return spots;
}

template <typename T>
void Store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

// Where the vectors of one side (keys or values) of a block lie.
struct Side {
  std::byte* lower;
  std::byte* upper;
  std::byte* scales;
  int bits;
  bool keys;
  KvBlockShape shape;

  int64_t cols() const { return keys ? shape.block_tokens : shape.head_dim; }
  int64_t row(int slot, int d) const { return keys ? d : slot; }
  int64_t col(int slot, int d) const { return keys ? slot : d; }
  std::byte* half(int slot, int d) const {
    return lower + 2 * (row(slot, d) * cols() + col(slot, d));
  }
};

Side SideOf(const KvBuildArgs& args, const KvBlockRef& block, bool keys) {
  std::byte* data = args.arena + int64_t{block.offset_64} * 64;
  const KvBlockPieces pieces = KvPieces(block.format, block.flags, args.shape);
  if (keys) {
    return {data + pieces.keys,
            data + pieces.key_upper,
            data + pieces.key_scales,
            KvKeyBits(block.format),
            true,
            args.shape};
  }
  return {data + pieces.values,
          data + pieces.value_upper,
          data + pieces.value_scales,
          KvValueBits(block.format),
          false,
          args.shape};
}

void CopyVector(const Side& from, int from_slot, const Side& to, int to_slot) {
  if (from.bits < 16) Store(to.scales + 2 * to_slot, Load<Half>(from.scales + 2 * from_slot));
  for (int d = 0; d < from.shape.head_dim; ++d) {
    if (from.bits == 16) {
      Store(to.half(to_slot, d), Load<Half>(from.half(from_slot, d)));
    } else {
      KvWriteCode({to.lower, to.upper}, to.bits, to.cols(), to.row(to_slot, d), to.col(to_slot, d),
                  KvReadCode({from.lower, from.upper}, from.bits, from.cols(),
                             from.row(from_slot, d), from.col(from_slot, d)));
    }
  }
}

void WriteVector(std::vector<double> x, bool transform, const Side& to, int slot) {
  if (transform) x = ReferenceHadamard(x);
  double largest = 0.0;
  for (const double element : x) largest = std::max(largest, std::abs(element));
  const int levels = to.bits == 8 ? 127 : (1 << to.bits) - 1;
  const double cut = to.bits == 4 ? 0.95 : to.bits == 3 ? 0.85 : 1.0;
  const Half stored = ToHalf(static_cast<float>(largest * cut / levels));
  const double scale = ToFloat(stored);
  if (to.bits < 16) Store(to.scales + 2 * slot, stored);
  for (int d = 0; d < to.shape.head_dim; ++d) {
    if (to.bits == 16) {
      Store(to.half(slot, d), ToHalf(static_cast<float>(x[d])));
      continue;
    }
    // The nearest level by trying all.
    int best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (int code = 0; code < 1 << to.bits; ++code) {
      if (to.bits == 8 && code == 128) continue;
      const double error = std::abs(KvLevel(to.bits, code) * scale - x[d]);
      if (error < least) {
        least = error;
        best = code;
      }
    }
    KvWriteCode({to.lower, to.upper}, to.bits, to.cols(), to.row(slot, d), to.col(slot, d),
                static_cast<uint8_t>(best));
  }
}

void BuildVector(const KvBuildArgs& args, const std::vector<SourceSpot>& spots,
                 const KvBuildEntry& entry, const KvBlockRef& block, int slot, bool keys) {
  const Side to = SideOf(args, block, keys);
  const int64_t position = std::lround(entry.position);
  const bool centred = keys && (block.flags & kKvCentred) != 0;
  std::vector<double> sum(args.shape.head_dim);
  int used = 0;
  for (int m = 0; m < entry.num_members; ++m) {
    const KvBuildMember& member = args.members[entry.first_member + m];
    const float weight = keys ? member.key_weight : member.value_weight;
    if (weight == 0.0f) continue;
    ++used;
    const SourceSpot& spot = spots[member.source];
    const Side from = SideOf(args, spot.block, keys);
    const bool alike =
        !keys || (spot.position == position && ((spot.block.flags & kKvCentred) != 0) == centred);
    bool alone = weight == 1.0f;
    for (int other = 0; other < entry.num_members; ++other) {
      const KvBuildMember& o = args.members[entry.first_member + other];
      if (other != m && (keys ? o.key_weight : o.value_weight) != 0.0f) alone = false;
    }
    if (alone && alike && from.bits == to.bits) return CopyVector(from, spot.slot, to, slot);
    const ReferenceEntry read = ReadReferenceEntry(args.arena, spot.block, args.shape,
                                                   args.key_mean, args.positions, spot.slot);
    std::vector<double> part = keys ? read.key : read.value;
    if (keys && position != spot.position) {
      ReferenceRotate(args.positions, std::abs(position - spot.position), position < spot.position,
                      &part);
    }
    for (int d = 0; d < args.shape.head_dim; ++d) sum[d] += weight * part[d];
  }
  if (centred) {
    std::vector<double> mean(args.key_mean, args.key_mean + args.shape.head_dim);
    ReferenceRotate(args.positions, position, false, &mean);
    for (int d = 0; d < args.shape.head_dim; ++d) sum[d] -= mean[d];
  }
  WriteVector(sum, keys ? KvKeysRotated(block.format) : KvValuesRotated(block.format), to, slot);
}

void WriteSide(const KvBuildArgs& args, const KvBuildEntry* entries, const KvBlockRef& block) {
  std::byte* data = args.arena + int64_t{block.offset_64} * 64;
  const KvBlockPieces pieces = KvPieces(block.format, block.flags, args.shape);
  long base = std::numeric_limits<long>::max();
  for (int e = 0; e < block.count; ++e) base = std::min(base, std::lround(entries[e].position));
  if ((block.flags & (kKvPosition | kKvRun)) != 0) {
    Store(data + pieces.base, static_cast<uint32_t>(base));
  }
  for (int e = 0; e < block.count; ++e) {
    if ((block.flags & kKvPosition) != 0) {
      Store(data + pieces.distances + 2 * e,
            static_cast<uint16_t>(std::lround(entries[e].position) - base));
    }
    if ((block.flags & kKvBias) != 0) Store(data + pieces.bias + 2 * e, ToHalf(entries[e].bias));
    if ((block.flags & kKvCount) != 0) {
      Store(data + pieces.counts + e, static_cast<uint8_t>(std::min(entries[e].count, 255)));
    }
  }
}

}  // namespace

void ReferenceKvBuild(const KvBuildArgs& args) {
  const std::vector<SourceSpot> spots = ListSources(args);
  const KvBuildEntry* entries = args.entries;
  for (int b = 0; b < args.num_blocks; ++b) {
    const KvBlockRef& block = args.blocks[b];
    for (int slot = 0; slot < block.count; ++slot) {
      BuildVector(args, spots, entries[slot], block, slot, true);
      BuildVector(args, spots, entries[slot], block, slot, false);
    }
    WriteSide(args, entries, block);
    entries += block.count;
  }
}

}  // namespace condense
