#include "kernels/cpu/sample.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>

#include "kernels/base/check.h"

namespace condense::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Temperatures below this are as good as 0 but must not make 0 * infinity.
constexpr float kMinTemperature = 1e-20f;
// Relative slack of a bound that was computed through a logarithm.
constexpr double kBoundSlack = 1e-3;

int NumChunks(int vocab) { return (vocab + kSampleChunk - 1) / kSampleChunk; }

struct MoreLikely {
  template <typename Candidate>
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  }
};

bool HasModifiers(const SampleRow& params) {
  const bool penalties = params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
                         params.frequency_penalty != 0.0f;
  return params.num_bias > 0 || (penalties && params.num_seen > 0);
}

void ApplyPenalties(const SampleRow& params, float* logits) {
  for (int i = 0; i < params.num_seen; ++i) {
    const TokenCount& seen = params.seen[i];
    float& logit = logits[seen.token];
    logit = logit > 0.0f ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    if (seen.generated > 0) {
      logit -=
          params.presence_penalty + params.frequency_penalty * static_cast<float>(seen.generated);
    }
  }
}

}  // namespace

SampleRunner::SampleRunner(const VectorKernels* kernels, ThreadPool* pool)
    : kernels_(kernels), pool_(pool), workers_(pool->num_threads()) {}

void SampleRunner::Run(const SampleArgs& args) {
  pool_->Run(args.rows, [&](int row, int worker) {
    RunRow(args.logits + int64_t{row} * args.vocab, args.vocab, args.params[row],
           &args.results[row], &workers_[worker]);
  });
}

void SampleRunner::RunRow(const float* logits, int vocab, const SampleRow& params,
                          SampleResult* result, Worker* worker) const {
  *result = SampleResult();
  worker->chunk_max.resize(NumChunks(vocab));
  worker->chunk_sum.resize(NumChunks(vocab));
  Row row = {logits, vocab};
  if (!Scan(&row, worker)) {
    result->finite = false;
    return;
  }
  const double log_total = double{row.max} + std::log(SumExp(row, 1.0f, worker));
  ReportTop(row, params.num_top, log_total, result, worker);
  if (params.target >= 0) {
    CHECK_LT(params.target, vocab);
    result->token = params.target;
  } else if (!HasModifiers(params) || Modify(&row, params, worker)) {
    result->token = Choose(row, params, worker);
  } else {
    result->finite = false;
    return;
  }
  result->logprob = static_cast<float>(logits[result->token] - log_total);
}

bool SampleRunner::Scan(Row* row, Worker* worker) const {
  if (!kernels_->chunk_max(row->logits, row->vocab, worker->chunk_max.data())) return false;
  row->max = *std::max_element(worker->chunk_max.begin(), worker->chunk_max.end());
  return row->max > -kInfinity;
}

double SampleRunner::SumExp(const Row& row, float inverse_temperature, Worker* worker) const {
  kernels_->chunk_exp_sum(row.logits, row.vocab, row.max, inverse_temperature,
                          worker->chunk_sum.data(), nullptr);
  double total = 0.0;
  for (const double sum : worker->chunk_sum) total += sum;
  return total;
}

bool SampleRunner::Modify(Row* row, const SampleRow& params, Worker* worker) const {
  worker->modified.assign(row->logits, row->logits + row->vocab);
  float* logits = worker->modified.data();
  ApplyPenalties(params, logits);
  for (int i = 0; i < params.num_bias; ++i) logits[params.bias[i].token] += params.bias[i].bias;
  row->logits = logits;
  return Scan(row, worker);
}

void SampleRunner::ReportTop(const Row& row, int num_top, double log_total, SampleResult* result,
                             Worker* worker) const {
  const int count = std::min({num_top, kMaxTopLogprobs, row.vocab});
  if (count <= 0) return;
  Gather(row, LowerBoundOfLargest(count, worker), worker);
  std::vector<Candidate>& candidates = worker->candidates;
  std::partial_sort(candidates.begin(), candidates.begin() + count, candidates.end(), MoreLikely());
  for (int i = 0; i < count; ++i) {
    result->top[i] = {candidates[i].token, static_cast<float>(candidates[i].logit - log_total)};
  }
}

TokenId SampleRunner::Choose(const Row& row, const SampleRow& params, Worker* worker) const {
  if (params.temperature <= 0.0f) return ChooseLargest(row, *worker);
  const float inverse_temperature = 1.0f / std::max(params.temperature, kMinTemperature);
  const bool filtered =
      (params.top_k > 0 && params.top_k < row.vocab) || params.top_p < 1.0f || params.min_p > 0.0f;
  return filtered ? ChooseFiltered(row, params, inverse_temperature, worker)
                  : ChooseFromAll(row, params.uniform, inverse_temperature, worker);
}

TokenId SampleRunner::ChooseLargest(const Row& row, const Worker& worker) const {
  const auto chunk = std::find(worker.chunk_max.begin(), worker.chunk_max.end(), row.max);
  TokenId token = static_cast<TokenId>(chunk - worker.chunk_max.begin()) * kSampleChunk;
  while (row.logits[token] != row.max) ++token;
  return token;
}

TokenId SampleRunner::ChooseFromAll(const Row& row, double uniform, float inverse_temperature,
                                    Worker* worker) const {
  const double wanted = uniform * SumExp(row, inverse_temperature, worker);
  double below = 0.0;
  int chunk = 0;
  int last = 0;  // the last chunk with any weight, in case rounding leaves `wanted` above the total
  for (; chunk < NumChunks(row.vocab); ++chunk) {
    if (worker->chunk_sum[chunk] > 0.0) last = chunk;
    if (below + worker->chunk_sum[chunk] > wanted) break;
    below += worker->chunk_sum[chunk];
  }
  const bool past_end = chunk == NumChunks(row.vocab);
  if (past_end) chunk = last;
  const int begin = chunk * kSampleChunk;
  const int count = std::min(kSampleChunk, row.vocab - begin);
  float weights[kSampleChunk];
  double sum;
  kernels_->chunk_exp_sum(row.logits + begin, count, row.max, inverse_temperature, &sum, weights);
  TokenId token = begin;
  for (int i = 0; i < count; ++i) {
    if (weights[i] <= 0.0f) continue;
    token = begin + i;
    below += weights[i];
    if (!past_end && below > wanted) break;
  }
  return token;
}

TokenId SampleRunner::ChooseFiltered(const Row& row, const SampleRow& params,
                                     float inverse_temperature, Worker* worker) const {
  const bool limit_mass = params.top_p < 1.0f;
  double total = 0.0;
  if (params.top_k > 0 && params.top_k < row.vocab) {
    Gather(row, LowerBoundOfLargest(params.top_k, worker), worker);
    KeepLargest(params.top_k, worker);
    WeighCandidates(row, inverse_temperature, worker);
    for (const Candidate& candidate : worker->candidates) total += candidate.weight;
  } else {
    double floor = 0.0;  // weights below it cannot be kept
    if (limit_mass) {
      // All V of them together weigh less than what top-p leaves out.
      total = SumExp(row, inverse_temperature, worker);
      floor = (1.0 - double{params.top_p}) * total / row.vocab;
    }
    floor = std::max(floor, double{params.min_p});
    const double logit_floor = row.max + (std::log(floor) - kBoundSlack) / inverse_temperature;
    // A floor above the maximum is rounding, or a min-p above 1: the maximum always stays.
    Gather(row, std::min(row.max, static_cast<float>(logit_floor)), worker);
    WeighCandidates(row, inverse_temperature, worker);
  }
  if (limit_mass) KeepMass(double{params.top_p} * total, worker);
  const float min_weight = std::min(params.min_p, 1.0f);
  double kept = 0.0;
  for (const Candidate& candidate : worker->candidates) {
    if (candidate.weight >= min_weight) kept += candidate.weight;
  }
  double below = 0.0;
  TokenId token = -1;
  for (const Candidate& candidate : worker->candidates) {
    if (candidate.weight < min_weight || candidate.weight <= 0.0f) continue;
    token = candidate.token;
    below += candidate.weight;
    if (below > params.uniform * kept) break;
  }
  return token;
}

float SampleRunner::LowerBoundOfLargest(int k, Worker* worker) const {
  std::vector<float>& largest = worker->largest;
  largest = worker->chunk_max;
  if (k > static_cast<int>(largest.size())) return -kInfinity;
  std::nth_element(largest.begin(), largest.begin() + (k - 1), largest.end(),
                   std::greater<float>());
  return largest[k - 1];
}

void SampleRunner::Gather(const Row& row, float floor, Worker* worker) const {
  worker->candidates.clear();
  for (int chunk = 0; chunk < NumChunks(row.vocab); ++chunk) {
    if (worker->chunk_max[chunk] < floor) continue;
    const int end = std::min(row.vocab, (chunk + 1) * kSampleChunk);
    for (TokenId token = chunk * kSampleChunk; token < end; ++token) {
      if (row.logits[token] >= floor)
        worker->candidates.push_back({row.logits[token], 0.0f, token});
    }
  }
}

void SampleRunner::KeepLargest(int k, Worker* worker) const {
  std::vector<Candidate>& candidates = worker->candidates;
  if (k >= static_cast<int>(candidates.size())) return;
  worker->ranked = candidates;
  std::nth_element(worker->ranked.begin(), worker->ranked.begin() + (k - 1), worker->ranked.end(),
                   MoreLikely());
  const Candidate last = worker->ranked[k - 1];
  candidates.erase(
      std::remove_if(candidates.begin(), candidates.end(),
                     [&](const Candidate& candidate) { return MoreLikely()(last, candidate); }),
      candidates.end());
}

void SampleRunner::WeighCandidates(const Row& row, float inverse_temperature,
                                   Worker* worker) const {
  std::vector<Candidate>& candidates = worker->candidates;
  const int count = static_cast<int>(candidates.size());
  worker->packed.resize(count);
  worker->packed_weights.resize(count);
  worker->chunk_sum.resize(std::max<size_t>(worker->chunk_sum.size(), NumChunks(count)));
  for (int i = 0; i < count; ++i) worker->packed[i] = candidates[i].logit;
  kernels_->chunk_exp_sum(worker->packed.data(), count, row.max, inverse_temperature,
                          worker->chunk_sum.data(), worker->packed_weights.data());
  for (int i = 0; i < count; ++i) candidates[i].weight = worker->packed_weights[i];
}

void SampleRunner::KeepMass(double mass, Worker* worker) const {
  std::vector<Candidate>& candidates = worker->candidates;
  std::vector<Candidate>& ranked = worker->ranked;
  ranked = candidates;
  // Halve the range that holds the last kept candidate: linear in all, where sorting would not be.
  size_t begin = 0;
  size_t end = ranked.size();
  double above = 0.0;
  while (end - begin > 1) {
    const size_t middle = begin + (end - begin) / 2;
    std::nth_element(ranked.begin() + begin, ranked.begin() + middle, ranked.begin() + end,
                     MoreLikely());
    double sum = 0.0;
    for (size_t i = begin; i < middle; ++i) sum += ranked[i].weight;
    if (above + sum >= mass) {
      end = middle;
    } else {
      above += sum;
      begin = middle;
    }
  }
  const Candidate last = ranked[begin];
  candidates.erase(
      std::remove_if(candidates.begin(), candidates.end(),
                     [&](const Candidate& candidate) { return MoreLikely()(last, candidate); }),
      candidates.end());
}

}  // namespace condense::cpu
