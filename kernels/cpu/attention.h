#ifndef CONDENSE_KERNELS_CPU_ATTENTION_H_
#define CONDENSE_KERNELS_CPU_ATTENTION_H_

// Attention over per-unit block lists on the CPU: cuts the work into items, runs them on the pool,
// merges the parts.
//
// A list is cut into parts of kAttentionPart entries counted from its start. A tile is a run of
// tokens of one sequence at one KV head; its rows are (token, query head of the group). An item is
// a tile with either one part (few tokens: decode steps spread one sequence over all threads) or
// all of its parts (prompt chunks). Both merge part results left to right with the same operations,
// so the split never shows in the result.

#include <cstdint>
#include <vector>

#include "kernels/cpu/kv_block_reader.h"
#include "kernels/cpu/mean_term.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/op_args.h"

namespace condense::cpu {

// One owner thread. Keeps its scratch between calls.
class AttentionRunner {
 public:
  // Both must outlive the runner.
  AttentionRunner(const VectorKernels* kernels, ThreadPool* pool);

  void Run(const AttentionArgs& args);
  // Every query sees the whole list.
  void Evaluate(const KvEvaluateArgs& args);

 private:
  // Where a part begins in the block list.
  struct PartStart {
    int32_t block = 0;        // the block that holds the part's first entry
    int32_t first_entry = 0;  // of that block, counted from the list's start
  };
  // One (sequence, KV head) of this call.
  struct Unit {
    const KvSequenceArgs* sequence = nullptr;
    const KvList* list = nullptr;
    int32_t kv_head = 0;
    int64_t first_part_start = 0;  // index into part_starts_
    float* evidence = nullptr;     // [num_entries] or null
    // What some block of the list needs.
    bool rotated_keys = false;
    bool rotated_values = false;
    bool centred = false;
    bool centred_gaps = false;
  };
  struct Tile {
    int32_t unit = 0;
    int32_t first_token = 0;
    int32_t num_tokens = 0;
    int32_t first_part = 0;  // parts that at least one row sees
    int32_t end_part = 0;
    int64_t partial =
        -1;  // offset of its part results in partials_, or -1: the item merges them itself
  };
  struct Item {
    int32_t tile = 0;
    int32_t part = -1;  // -1: all parts
  };
  struct Range {
    int32_t from = 0;
    int32_t to = 0;
    bool empty() const { return from >= to; }
  };
  // What one part leaves for the rows of a tile.
  struct PartResult {
    PartSoftmax* softmax = nullptr;  // [rows]
    float* sums = nullptr;           // [rows, D]
    float* rotated_sums = nullptr;   // [rows, D], null in units without rotated values
    float* weights = nullptr;        // [rows, kWeightStride], entry 0 of the part at kWeightPad
  };
  struct Worker {
    FloatScratch queries;   // [rows, D] each: scaled, rotated
    FloatScratch mean;      // coefficients and turned ones, see MeanTermArgs
    FloatScratch weights;   // one part
    FloatScratch partials;  // part results of an item that merges them itself
    FloatScratch totals;    // merged [rows, D] and softmax [rows]
    FloatScratch evidence;  // one part
  };

  void Plan(const AttentionArgs& args);
  void PlanUnit(const AttentionArgs& args, int sequence, int kv_head);
  void FillMeanTables(const AttentionArgs& args);
  void PlanTiles(const AttentionArgs& args, int unit);

  void RunItem(const AttentionArgs& args, const Item& item, Worker* worker);
  TileQueries PrepareQueries(const AttentionArgs& args, const Tile& tile, Worker* worker) const;
  void ComputePart(const AttentionArgs& args, const Tile& tile, int part,
                   const TileQueries& queries, const PartResult& result);
  void ComputeLogits(const AttentionArgs& args, const Tile& tile, int part,
                     const TileQueries& queries, float* weights);
  void SumValues(const AttentionArgs& args, const Tile& tile, int part, const PartResult& result);
  void SumValuesOfRows(const AttentionArgs& args, const Unit& unit, int part, Range rows,
                       Range entries, const PartResult& result);
  void FinishTile(const AttentionArgs& args, const Tile& tile, float* partials, Worker* worker);
  // The sums of one row: into = into * a + from * b.
  void CombineSums(const AttentionArgs& args, const PartResult& into, float a,
                   const PartResult& from, float b, int row) const;
  void WriteRows(const AttentionArgs& args, const Tile& tile, const PartResult& total);
  void WriteMass(const AttentionArgs& args, const Tile& tile, float* partials,
                 const PartSoftmax* totals, Worker* worker) const;
  void WriteEvidence(const AttentionArgs& args, const Tile& tile, float* partials,
                     const PartSoftmax* totals, Worker* worker);

  int Rows(const AttentionArgs& args, const Tile& tile) const;
  // Whether the weights of every part are kept until the totals are known.
  bool KeepsWeights(const AttentionArgs& args) const {
    return args.evidence != nullptr || mass_ != nullptr;
  }
  // Floats of the sums of one row; none without an output for them.
  int64_t SumsPerRow(const AttentionArgs& args, const Tile& tile) const;
  int64_t PartResultSize(const AttentionArgs& args, const Tile& tile) const;
  PartResult ResultAt(const AttentionArgs& args, const Tile& tile, float* partials, int part,
                      Worker* worker) const;
  // Entries that token `token` of the unit's sequence sees, counted from the list's start.
  Range Visible(const AttentionArgs& args, const Unit& unit, int token) const;

  const VectorKernels* const kernels_;
  ThreadPool* const pool_;
  // Set while Evaluate runs.
  bool whole_list_ = false;
  float* mass_ = nullptr;  // [rows, num_entries] or null
  std::vector<Unit> units_;
  std::vector<PartStart> part_starts_;
  std::vector<Tile> tiles_;
  std::vector<Item> items_;
  std::vector<int32_t> split_tiles_;
  int64_t partials_size_ = 0;
  FloatScratch partials_;
  float* split_partials_ = nullptr;  // in partials_, while Run runs
  MeanTables mean_;                  // of this call, if a block is centred
  std::vector<Worker> workers_;
};

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_ATTENTION_H_
