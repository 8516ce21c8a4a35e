#ifndef CONDENSE_KERNELS_CPU_SAMPLE_H_
#define CONDENSE_KERNELS_CPU_SAMPLE_H_

// Choosing a token from each row of logits. Never sorts the vocabulary: maxima of chunks of 64
// logits bound what can be among the k largest, sums of chunks find the quantile.

#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/op_args.h"

namespace condense::cpu {

// One owner thread. Keeps its scratch between calls; rows are split over the pool.
class SampleRunner {
 public:
  // Both must outlive the runner.
  SampleRunner(const VectorKernels* kernels, ThreadPool* pool);

  void Run(const SampleArgs& args);

 private:
  struct Candidate {
    float logit = 0.0f;
    float weight = 0.0f;  // exp((logit - max) / temperature)
    TokenId token = 0;
  };
  struct Worker {
    std::vector<float> modified;        // [V], logits after penalties and bias
    std::vector<float> chunk_max;       // [V / 64]
    std::vector<float> largest;         // copy of chunk_max for selection
    std::vector<double> chunk_sum;      // [V / 64]
    std::vector<Candidate> candidates;  // in id order
    std::vector<Candidate> ranked;      // copy of them for selection
    std::vector<float> packed;          // logits of the candidates
    std::vector<float> packed_weights;
  };
  // One row in work: logits with the maxima of their chunks.
  struct Row {
    const float* logits = nullptr;
    int vocab = 0;
    float max = 0.0f;
  };

  void RunRow(const float* logits, int vocab, const SampleRow& params, SampleResult* result,
              Worker* worker) const;
  // False if a logit is NaN or +infinity, or none is finite.
  bool Scan(Row* row, Worker* worker) const;
  // Chunk sums and total of exp((logit - max) * inverse_temperature).
  double SumExp(const Row& row, float inverse_temperature, Worker* worker) const;
  bool Modify(Row* row, const SampleRow& params, Worker* worker) const;
  void ReportTop(const Row& row, int num_top, double log_total, SampleResult* result,
                 Worker* worker) const;

  TokenId Choose(const Row& row, const SampleRow& params, Worker* worker) const;
  TokenId ChooseLargest(const Row& row, const Worker& worker) const;
  TokenId ChooseFromAll(const Row& row, double uniform, float inverse_temperature,
                        Worker* worker) const;
  TokenId ChooseFiltered(const Row& row, const SampleRow& params, float inverse_temperature,
                         Worker* worker) const;

  // A value that at least k logits reach and that no more than k of them exceed by chunk.
  float LowerBoundOfLargest(int k, Worker* worker) const;
  // Fills `candidates` with the tokens whose logit is at least `floor`.
  void Gather(const Row& row, float floor, Worker* worker) const;
  void KeepLargest(int k, Worker* worker) const;
  void WeighCandidates(const Row& row, float inverse_temperature, Worker* worker) const;
  // Keeps the most likely candidates until their weights reach `mass`.
  void KeepMass(double mass, Worker* worker) const;

  const VectorKernels* const kernels_;
  ThreadPool* const pool_;
  std::vector<Worker> workers_;
};

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_SAMPLE_H_
