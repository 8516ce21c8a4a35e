#include "tests/support/reference_backend.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "tests/support/reference_kv.h"

namespace condense {
namespace {

constexpr size_t kAlignment = 64;

double Activate(double x, Activation activation) {
  if (activation == Activation::kSilu) return x / (1.0 + std::exp(-x));
  const double u = std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1.0 + std::tanh(u));
}

std::vector<ReferenceEntry> ReadList(const AttentionArgs& args, const KvList& list, int kv_head) {
  const float* mean =
      args.key_mean != nullptr ? args.key_mean + int64_t{kv_head} * args.shape.head_dim : nullptr;
  std::vector<ReferenceEntry> entries;
  for (int b = 0; b < list.num_blocks; ++b) {
    for (int e = 0; e < list.blocks[b].count; ++e) {
      entries.push_back(
          ReadReferenceEntry(args.arena, list.blocks[b], args.shape, mean, args.positions, e));
    }
  }
  CHECK_EQ(static_cast<int64_t>(entries.size()), int64_t{list.num_entries});
  return entries;
}

// One query against entries [from, to).
void AttendRow(const AttentionArgs& args, const std::vector<ReferenceEntry>& entries, int from,
               int to, int64_t row_head, float* evidence) {
  const int head_dim = args.shape.head_dim;
  const float* q = args.q + row_head * head_dim;
  std::vector<double> weights(to - from);
  double max = -std::numeric_limits<double>::infinity();
  for (int e = from; e < to; ++e) {
    double dot = 0.0;
    for (int d = 0; d < head_dim; ++d) dot += double{q[d]} * entries[e].key[d];
    weights[e - from] = dot * args.scale + entries[e].bias;
    max = std::max(max, weights[e - from]);
  }
  double sum = 0.0;
  for (double& weight : weights) {
    weight = std::exp(weight - max);
    sum += weight;
  }
  for (int d = 0; d < head_dim; ++d) {
    double value = 0.0;
    for (int e = from; e < to; ++e) value += weights[e - from] * entries[e].value[d];
    args.out[row_head * head_dim + d] = static_cast<float>(value / sum);
  }
  if (args.log_sum_exp != nullptr)
    args.log_sum_exp[row_head] = static_cast<float>(max + std::log(sum));
  if (evidence == nullptr) return;
  for (int e = from; e < to; ++e) {
    evidence[e] = std::max(evidence[e], static_cast<float>(weights[e - from] / sum));
  }
}

void AttendUnit(const AttentionArgs& args, int sequence, int kv_head) {
  const KvSequenceArgs& rows = args.sequences[sequence];
  const KvList& list = rows.lists[kv_head];
  const std::vector<ReferenceEntry> entries = ReadList(args, list, kv_head);
  const int group = args.num_heads / args.num_kv_heads;
  float* evidence = nullptr;
  if (args.evidence != nullptr) {
    evidence =
        args.evidence + args.evidence_offset[int64_t{sequence} * args.num_kv_heads + kv_head];
    std::fill_n(evidence, list.num_entries, 0.0f);
  }
  for (int t = 0; t < rows.num_tokens; ++t) {
    const int to = list.num_entries - (rows.num_tokens - 1 - t);
    const int from = args.window > 0 ? std::max(0, to - args.window) : 0;
    for (int h = 0; h < group; ++h) {
      const int64_t row = rows.first_row + t;
      AttendRow(args, entries, from, to, row * args.num_heads + kv_head * group + h, evidence);
    }
  }
}

}  // namespace

ReferenceBackend::~ReferenceBackend() { CHECK_EQ(allocated_bytes_, 0); }

BackendInfo ReferenceBackend::Info() const {
  return {"reference", "scalar, double accumulation", kMemoryBytes};
}

absl::StatusOr<Buffer> ReferenceBackend::Allocate(int64_t size_bytes) {
  if (size_bytes < 0)
    return absl::InvalidArgumentError(absl::StrFormat("size_bytes %d is negative", size_bytes));
  if (size_bytes == 0) return Buffer();
  const int64_t available = kMemoryBytes - allocated_bytes_;
  const size_t rounded =
      (static_cast<size_t>(size_bytes) + kAlignment - 1) / kAlignment * kAlignment;
  void* data = size_bytes <= available ? std::aligned_alloc(kAlignment, rounded) : nullptr;
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("reference memory: asked for %d bytes, %d of %d are available", size_bytes,
                        available, kMemoryBytes));
  }
  std::memset(data, 0, rounded);
  allocated_bytes_ += size_bytes;
  return Buffer(this, static_cast<std::byte*>(data), size_bytes);
}

void ReferenceBackend::Free(std::byte* data, int64_t size_bytes) {
  allocated_bytes_ -= size_bytes;
  std::free(data);
}

void ReferenceBackend::CopyToDevice(std::byte* to, const std::byte* from, int64_t size_bytes) {
  if (size_bytes > 0) std::memcpy(to, from, size_bytes);
}

void ReferenceBackend::CopyToHost(std::byte* to, const std::byte* from, int64_t size_bytes) {
  if (size_bytes > 0) std::memcpy(to, from, size_bytes);
}

void ReferenceBackend::Zero(std::byte* data, int64_t size_bytes) {
  if (size_bytes > 0) std::memset(data, 0, size_bytes);
}

// Not numbers, so that whoever reads what was discarded shows it.
void ReferenceBackend::Discard(std::byte* data, int64_t size_bytes) {
  std::fill_n(data, size_bytes, std::byte{0x7f});
}

absl::Status ReferenceBackend::Synchronize() { return absl::OkStatus(); }

void ReferenceBackend::Embed(const EmbedArgs& args) {
  const int64_t width = args.table.cols;
  for (int t = 0; t < args.num_tokens; ++t) {
    UnpackRow(args.table, args.tokens[t], args.out + t * width);
    for (int64_t i = 0; i < width; ++i) args.out[t * width + i] *= args.scale;
  }
}

void ReferenceBackend::RmsNorm(const RmsNormArgs& args) {
  for (int r = 0; r < args.rows; ++r) {
    const int64_t from = args.row_index != nullptr ? args.row_index[r] : r;
    const float* x = args.x + from * args.cols;
    double squares = 0.0;
    for (int c = 0; c < args.cols; ++c) squares += double{x[c]} * x[c];
    const double factor = 1.0 / std::sqrt(squares / args.cols + args.epsilon);
    for (int c = 0; c < args.cols; ++c) {
      args.out[int64_t{r} * args.cols + c] = static_cast<float>(x[c] * factor * args.weight[c]);
    }
  }
}

void ReferenceBackend::Matmul(const MatmulArgs& args) {
  for (int o = 0; o < args.num_outputs; ++o) {
    const MatmulOutput& output = args.outputs[o];
    const int64_t n = output.weight.rows;
    const int64_t k = output.weight.cols;
    std::vector<float> row(k);
    for (int64_t i = 0; i < n; ++i) {
      UnpackRow(output.weight, i, row.data());
      for (int64_t t = 0; t < args.rows; ++t) {
        double sum = output.bias != nullptr ? output.bias[i] : 0.0;
        for (int64_t c = 0; c < k; ++c) sum += double{args.x[t * k + c]} * row[c];
        float& y = output.y[t * n + i];
        y = static_cast<float>(output.accumulate ? y + sum : sum);
      }
    }
  }
}

void ReferenceBackend::Rope(const RopeArgs& args) {
  const int half = args.head_dim / 2;
  const bool adjacent = args.pairing == RopePairing::kAdjacent;
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    for (int h = 0; h < args.num_heads; ++h) {
      float* x = args.x + (t * args.num_heads + h) * args.head_dim;
      for (int i = 0; i < half; ++i) {
        float& first = x[adjacent ? 2 * i : i];
        float& second = x[adjacent ? 2 * i + 1 : i + half];
        const double c = args.cos[t * half + i];
        const double s = args.sin[t * half + i];
        const double a = first;
        const double b = second;
        first = static_cast<float>(a * c - b * s);
        second = static_cast<float>(b * c + a * s);
      }
    }
  }
}

void ReferenceBackend::Gate(const GateArgs& args) {
  for (int64_t i = 0; i < args.size; ++i) {
    args.gate[i] = static_cast<float>(Activate(args.gate[i], args.activation) * args.up[i]);
  }
}

void ReferenceBackend::Add(const AddArgs& args) {
  for (int64_t i = 0; i < args.size; ++i) args.x[i] += args.y[i];
}

void ReferenceBackend::KvAppend(const KvAppendArgs& args) {
  const int head_dim = args.shape.head_dim;
  for (int s = 0; s < args.num_sequences; ++s) {
    const KvSequenceArgs& rows = args.sequences[s];
    for (int g = 0; g < args.num_kv_heads; ++g) {
      const KvList& list = rows.lists[g];
      int entry = 0;
      for (int b = 0; b < list.num_blocks; ++b) {
        const KvBlockRef& block = list.blocks[b];
        std::byte* data = args.arena + int64_t{block.offset_64} * 64;
        Half* keys = reinterpret_cast<Half*>(data);
        Half* values = reinterpret_cast<Half*>(data + KvValuesOffset(block.format, args.shape));
        for (int slot = 0; slot < block.count; ++slot, ++entry) {
          const int token = entry - (list.num_entries - rows.num_tokens);
          if (token < 0) continue;
          const int64_t source =
              (int64_t{rows.first_row + token} * args.num_kv_heads + g) * head_dim;
          for (int d = 0; d < head_dim; ++d) {
            keys[int64_t{d} * args.shape.block_tokens + slot] = ToHalf(args.k[source + d]);
            values[int64_t{slot} * head_dim + d] = ToHalf(args.v[source + d]);
          }
        }
      }
    }
  }
}

void ReferenceBackend::Attention(const AttentionArgs& args) {
  for (int s = 0; s < args.num_sequences; ++s) {
    for (int g = 0; g < args.num_kv_heads; ++g) AttendUnit(args, s, g);
  }
}

void ReferenceBackend::Sample(const SampleArgs& args) {
  for (int r = 0; r < args.rows; ++r) {
    args.results[r] =
        ReferenceSample(args.logits + int64_t{r} * args.vocab, args.vocab, args.params[r]);
  }
}

absl::Status ReferenceBackend::KvRead(const KvReadArgs& args) {
  ReferenceKvRead(args);
  return absl::OkStatus();
}

absl::Status ReferenceBackend::KvBuild(const KvBuildArgs& args) {
  ReferenceKvBuild(args);
  return absl::OkStatus();
}

absl::Status ReferenceBackend::KvEvaluate(const KvEvaluateArgs& args) {
  // Each query alone, so that its evidence is its mass.
  const int64_t rows = int64_t{args.num_queries} * args.group;
  const KvSequenceArgs sequence = {0, 1, &args.list};
  const int64_t evidence_offset = 0;
  AttentionArgs attention;
  attention.arena = args.arena;
  attention.shape = args.shape;
  attention.num_heads = 1;
  attention.num_kv_heads = 1;
  attention.num_sequences = 1;
  attention.sequences = &sequence;
  attention.scale = args.scale;
  attention.key_mean = args.key_mean;
  attention.positions = args.positions;
  attention.evidence_offset = &evidence_offset;
  std::vector<float> unwanted(args.shape.head_dim);
  for (int64_t row = 0; row < rows; ++row) {
    attention.q = args.q + row * args.shape.head_dim;
    attention.out = args.out == nullptr ? unwanted.data() : args.out + row * args.shape.head_dim;
    if (args.log_sum_exp != nullptr) attention.log_sum_exp = args.log_sum_exp + row;
    if (args.mass != nullptr) attention.evidence = args.mass + row * args.list.num_entries;
    Attention(attention);
  }
  return absl::OkStatus();
}

}  // namespace condense
