#include "engine/unit_calibration.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_format.h"
#include "cache/compression.h"
#include "cache/query_log.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

constexpr int32_t kSinks = 4;

constexpr char kText[] =
    R"(The harbour office opens at seven. By then the first boats are back, and the people who buy
for the restaurants stand on the wet stones with their hands in their pockets. Nobody hurries. A
woman named Ines writes the weights into a grey book: 12.5 kg, 8 kg, 31.25 kg. When the sun comes
over the roofs, the cats arrive, and the noise begins.

Question: How does a heat pump warm a house in winter?
Answer: It moves heat instead of making it. A liquid that boils far below zero takes up heat from
the air outside, becomes gas, and is compressed, which makes it hot. Indoors it gives the heat to
the water of the radiators, turns liquid again, and expands. For each unit of electricity, about
three units of heat arrive.

def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2

{"order": 48213, "items": [{"name": "lamp", "price": 19.9}, {"name": "rope", "price": 4.75}]}

In 1887 two surveyors crossed the plateau from north to south. Their diary, which was found in a
tin box ninety years later, lists the villages, the wells and the price of barley. "We have seen
no tree for six days," one of them notes, "and yet we are never out of sight of smoke." What they
took for smoke was dust: the great herds were moving.

The committee shall meet at least four times in each year. A member who cannot attend may name a
deputy, provided that the chair has been told in writing. Decisions require a majority of those
present; where votes are equal, the chair decides.

- Peel the apples and cut them into quarters.
- Melt 60 g of butter, add the sugar, and wait until it is brown.
- Lay the apples into the pan; cover them with the dough; bake for 25 minutes at 200 degrees.

Die Fenster standen offen, und aus dem Hof kam der Geruch von Regen. Elle n'avait pas dit un mot
depuis le matin. El tren de las nueve llegaba siempre tarde, pero nadie se quejaba.

Dear Tom, thank you for the photographs! I had quite forgotten the red bicycle. Do you remember
how we carried it up the hill, because you would not believe that the chain was broken? Write soon,
and tell me whether the garden survived the storm. Yours, Anna
)";

// The pairs of components that turn together: (2i, 2i + 1) or (i, i + D/2).
int32_t First(RopePairing pairing, int32_t pair) {
  return pairing == RopePairing::kAdjacent ? 2 * pair : pair;
}
int32_t Second(RopePairing pairing, int32_t pair, int32_t head_dim) {
  return pairing == RopePairing::kAdjacent ? 2 * pair + 1 : pair + head_dim / 2;
}

void KeepStrongestPairs(RopePairing pairing, std::span<float> mean) {
  const auto head_dim = static_cast<int32_t>(mean.size());
  std::vector<double> energy(head_dim / 2);
  for (int32_t i = 0; i < head_dim / 2; ++i) {
    const double a = mean[First(pairing, i)];
    const double b = mean[Second(pairing, i, head_dim)];
    energy[i] = a * a + b * b;
  }
  std::vector<int32_t> order(head_dim / 2);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return energy[a] > energy[b]; });
  const double enough = kMeanEnergyKept * std::accumulate(energy.begin(), energy.end(), 0.0);
  double kept = 0.0;
  for (const int32_t i : order) {
    if (kept >= enough) {
      mean[First(pairing, i)] = 0.0f;
      mean[Second(pairing, i, head_dim)] = 0.0f;
    }
    kept += energy[i];
  }
}

// keys [n, D]
void Average(std::span<const float> keys, std::span<float> mean) {
  const size_t n = keys.size() / mean.size();
  for (size_t d = 0; d < mean.size(); ++d) {
    double sum = 0.0;
    for (size_t i = 0; i < n; ++i) sum += keys[i * mean.size() + d];
    mean[d] = static_cast<float>(sum / static_cast<double>(n));
  }
}

// One sequence over which everything is measured.
class Calibration {
 public:
  Calibration(Backend* backend, Model* model, KvCache* cache, int32_t cluster_window)
      : backend_(backend),
        model_(model),
        cache_(cache),
        cluster_window_(cluster_window),
        layout_(cache->layout()),
        kv_(cache->Open()) {
    result_.means.resize(int64_t{layout_.num_units()} * layout_.block.head_dim);
    result_.merge_curves = MergeCurves(layout_.num_units());
    result_.recall.resize(layout_.num_units());
  }
  ~Calibration() { cache_->Release(kv_.get()); }
  Calibration(const Calibration&) = delete;
  Calibration& operator=(const Calibration&) = delete;

  absl::StatusOr<UnitCalibration> Run(std::span<const TokenId> tokens, int32_t step_tokens) {
    RETURN_IF_ERROR(Append(tokens, step_tokens, nullptr));
    for (const int32_t unit : Units()) RETURN_IF_ERROR(MeasureKeys(unit));
    const auto size = static_cast<int32_t>(tokens.size());
    if (size < 4 * kRepeatedTokens) return std::move(result_);
    // From the middle, so that neither the sinks nor the newest tokens are what is found.
    const int32_t first = size / 4;
    QueryLog log(layout_, Group(), size + kRepeatedTokens);
    RETURN_IF_ERROR(Append(tokens.subspan(first, kRepeatedTokens), step_tokens, &log));
    for (const int32_t unit : Units()) {
      RETURN_IF_ERROR(MeasureRecall(unit, log, /*distance=*/size - first));
    }
    return std::move(result_);
  }

 private:
  // The keys of one unit, position-free, without sinks.
  struct Keys {
    std::vector<float> keys;  // [n, D]
    std::vector<int32_t> positions;
  };

  int32_t Group() const { return model_->config().num_heads / model_->config().num_kv_heads; }
  // Those of windowed layers left out: they may have lost their first blocks.
  std::vector<int32_t> Units() const {
    std::vector<int32_t> units;
    for (int32_t unit = 0; unit < layout_.num_units(); ++unit) {
      if (layout_.window_of_unit(unit) == 0) units.push_back(unit);
    }
    return units;
  }

  absl::Status Append(std::span<const TokenId> tokens, int32_t step_tokens, QueryLog* log) {
    for (size_t done = 0; done < tokens.size();) {
      const auto count = static_cast<int32_t>(std::min<size_t>(tokens.size() - done, step_tokens));
      if (!cache_->TryReserve(kv_.get(), count)) {
        return absl::ResourceExhaustedError(absl::StrFormat(
            "the KV memory does not hold the %d tokens of the calibration text", tokens.size()));
      }
      const auto start = static_cast<int32_t>(kv_->committed_tokens);
      Batch batch;
      batch.tokens.assign(tokens.begin() + done, tokens.begin() + done + count);
      batch.positions.resize(count);
      std::iota(batch.positions.begin(), batch.positions.end(), start);
      batch.sequences.push_back({.first_row = 0, .num_tokens = count});
      batch.kv.push_back(kv_.get());
      for (int32_t row = 0; log != nullptr && row < count; ++row) {
        const int32_t slot = log->SlotFor(start + row);
        if (slot >= 0) batch.captures.push_back({row, log, slot});
      }
      model_->Forward(&batch, cache_);
      RETURN_IF_ERROR(backend_->Synchronize());
      cache_->Commit(kv_.get(), count);
      done += count;
    }
    return absl::OkStatus();
  }

  // The first n entries of a unit.
  std::vector<KvBuildSource> Entries(int32_t unit, int32_t n) const {
    const BlockTable& table = kv_->tables[unit];
    std::vector<KvBuildSource> sources;
    for (int32_t i = 0; n > 0; ++i) {
      KvBlockRef block = table.blocks()[i];
      block.count = static_cast<uint16_t>(std::min(n, layout_.block.block_tokens));
      n -= block.count;
      sources.push_back({block, table.first_position(i)});
    }
    return sources;
  }

  absl::StatusOr<Keys> ReadKeys(int32_t unit) {
    const int32_t head_dim = layout_.block.head_dim;
    const int32_t n = kv_->tables[unit].committed_entries();
    const std::vector<KvBuildSource> sources = Entries(unit, n);
    Keys read{std::vector<float>(int64_t{n} * head_dim), std::vector<int32_t>(n)};
    RETURN_IF_ERROR(backend_->KvRead({.arena = cache_->arena(),
                                      .shape = layout_.block,
                                      .sources = sources.data(),
                                      .num_sources = static_cast<int32_t>(sources.size()),
                                      .keys = read.keys.data(),
                                      .positions_out = read.positions.data()}));
    RopeTable rope(model_->Frequencies(unit / layout_.num_kv_heads));
    rope.Extend(read.positions.back() + 1);
    rope.ToOrigin(read.positions, read.keys.data());
    if (n > 2 * kSinks) {
      read.keys.erase(read.keys.begin(), read.keys.begin() + int64_t{kSinks} * head_dim);
      read.positions.erase(read.positions.begin(), read.positions.begin() + kSinks);
    }
    return read;
  }

  absl::Status MeasureKeys(int32_t unit) {
    ASSIGN_OR_RETURN(const Keys read, ReadKeys(unit));
    const int32_t head_dim = layout_.block.head_dim;
    const std::span<float> mean =
        std::span(result_.means).subspan(int64_t{unit} * head_dim, head_dim);
    Average(read.keys, mean);
    KeepStrongestPairs(model_->config().rope_pairing, mean);
    result_.merge_curves.Set(unit, MeasureMergeCurve(read.keys, read.positions, head_dim,
                                                     cluster_window_, Compression().max_members));
    return absl::OkStatus();
  }

  // `distance`: from a repeated token back to where it stood first.
  absl::Status MeasureRecall(int32_t unit, const QueryLog& log, int32_t distance) {
    const int32_t group = Group();
    QuerySamples queries, held_out;
    log.Gather(unit / layout_.num_kv_heads, unit % layout_.num_kv_heads, 0, 0,
               /*plain_front=*/false, &queries, &held_out);
    const std::vector<int64_t> positions = log.RecentPositions(/*held_out=*/false);
    double sum = 0.0;
    for (int32_t i = 0; i < queries.size(); ++i) {
      const auto n = static_cast<int32_t>(positions[i] + 1);
      std::vector<KvBlockRef> blocks;
      for (const KvBuildSource& source : Entries(unit, n)) blocks.push_back(source.block);
      std::vector<float> out(int64_t{group} * layout_.block.head_dim);
      std::vector<float> mass(int64_t{group} * n);
      RETURN_IF_ERROR(
          backend_->KvEvaluate({.q = queries.q.data() + i * static_cast<int64_t>(out.size()),
                                .arena = cache_->arena(),
                                .shape = layout_.block,
                                .num_queries = 1,
                                .group = group,
                                .list = {blocks.data(), static_cast<int32_t>(blocks.size()), n},
                                .scale = model_->config().attention_scale,
                                .out = out.data(),
                                .mass = mass.data()}));
      float largest = 0.0f;
      for (int32_t head = 0; head < group; ++head) {
        largest = std::max(largest, mass[int64_t{head} * n + positions[i] - distance + 1]);
      }
      sum += largest;
    }
    result_.recall[unit] = static_cast<float>(sum / std::max(queries.size(), 1));
    return absl::OkStatus();
  }

  Backend* const backend_;
  Model* const model_;
  KvCache* const cache_;
  const int32_t cluster_window_;
  const KvLayout& layout_;
  const std::unique_ptr<KvSequence> kv_;
  UnitCalibration result_;
};

}  // namespace

std::string_view CalibrationText() { return kText; }

absl::StatusOr<UnitCalibration> MeasureUnits(Backend* backend, Model* model, KvCache* cache,
                                             std::span<const TokenId> tokens, int32_t step_tokens,
                                             int32_t cluster_window) {
  return Calibration(backend, model, cache, cluster_window).Run(tokens, step_tokens);
}

}  // namespace condense
