#include "engine/key_means.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_format.h"
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

absl::Status Compute(Backend* backend, Model* model, KvCache* cache,
                     std::span<const TokenId> tokens, int32_t step_tokens, KvSequence* kv) {
  for (size_t done = 0; done < tokens.size();) {
    const auto count = static_cast<int32_t>(std::min<size_t>(tokens.size() - done, step_tokens));
    if (!cache->TryReserve(kv, count)) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "the KV memory does not hold the %d tokens of the calibration text", tokens.size()));
    }
    Batch batch;
    batch.tokens.assign(tokens.begin() + done, tokens.begin() + done + count);
    batch.positions.resize(count);
    std::iota(batch.positions.begin(), batch.positions.end(), static_cast<int32_t>(done));
    batch.sequences.push_back({.first_row = 0, .num_tokens = count});
    batch.kv.push_back(kv);
    model->Forward(&batch, cache);
    RETURN_IF_ERROR(backend->Synchronize());
    cache->Commit(kv, count);
    done += count;
  }
  return absl::OkStatus();
}

absl::Status Average(Backend* backend, const Model& model, const KvCache& cache,
                     const KvSequence& kv, int32_t layer, int32_t unit, std::span<float> mean) {
  const BlockTable& table = kv.tables[unit];
  const int32_t n = table.committed_entries();
  std::vector<KvBuildSource> sources;
  int32_t left = n;
  for (int32_t i = 0; left > 0; ++i) {
    KvBlockRef block = table.blocks()[i];
    block.count = static_cast<uint16_t>(std::min(left, cache.layout().block.block_tokens));
    left -= block.count;
    sources.push_back({block, table.first_position(i)});
  }
  std::vector<float> keys(int64_t{n} * static_cast<int64_t>(mean.size()));
  std::vector<int32_t> positions(n);
  RETURN_IF_ERROR(backend->KvRead({.arena = cache.arena(),
                                   .shape = cache.layout().block,
                                   .sources = sources.data(),
                                   .num_sources = static_cast<int32_t>(sources.size()),
                                   .keys = keys.data(),
                                   .positions_out = positions.data()}));
  RopeTable rope(model.Frequencies(layer));
  rope.Extend(positions.back() + 1);
  rope.ToOrigin(positions, keys.data());
  const int32_t first = n > 2 * kSinks ? kSinks : 0;
  for (size_t d = 0; d < mean.size(); ++d) {
    double sum = 0.0;
    for (int32_t i = first; i < n; ++i) sum += keys[i * mean.size() + d];
    mean[d] = static_cast<float>(sum / (n - first));
  }
  KeepStrongestPairs(model.config().rope_pairing, mean);
  return absl::OkStatus();
}

}  // namespace

std::string_view CalibrationText() { return kText; }

absl::StatusOr<std::vector<float>> MeasureKeyMeans(Backend* backend, Model* model, KvCache* cache,
                                                   std::span<const TokenId> tokens,
                                                   int32_t step_tokens) {
  const KvLayout& layout = cache->layout();
  const int32_t head_dim = layout.block.head_dim;
  const std::unique_ptr<KvSequence> kv = cache->Open();
  absl::Status status = Compute(backend, model, cache, tokens, step_tokens, kv.get());
  std::vector<float> means(int64_t{layout.num_units()} * head_dim);
  for (int32_t unit = 0; status.ok() && unit < layout.num_units(); ++unit) {
    const int32_t layer = unit / layout.num_kv_heads;
    if (layout.window(layer) > 0) continue;  // never compacted, and may have lost its first blocks
    status = Average(backend, *model, *cache, *kv, layer, unit,
                     std::span(means).subspan(int64_t{unit} * head_dim, head_dim));
  }
  cache->Release(kv.get());
  if (!status.ok()) return status;
  return means;
}

}  // namespace condense
