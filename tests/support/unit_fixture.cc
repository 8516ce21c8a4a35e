#include "tests/support/unit_fixture.h"

#include <cmath>
#include <random>

namespace condense {

UnitView UnitFixture::View() const {
  return {.entries = {.positions = positions,
                      .biases = biases,
                      .counts = counts,
                      .protection = protection},
          .evidence = &evidence,
          .keys = keys,
          .head_dim = head_dim};
}

UnitFixture MakeUnit(int32_t num_entries, int32_t head_dim, uint64_t seed) {
  constexpr int kTopics = 40;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> topic_of(0, kTopics - 1);
  std::vector<float> mean(head_dim), topics(kTopics * head_dim);
  for (float& x : mean) x = 1.9f * normal(random);
  for (float& x : topics) x = 0.8f * normal(random);

  UnitFixture unit;
  unit.head_dim = head_dim;
  unit.protection.end_position = num_entries;
  for (int32_t i = 0; i < num_entries; ++i) {
    unit.positions.push_back(i);
    const float share = std::exp(1.5f * normal(random)) / static_cast<float>(num_entries + 1);
    unit.evidence.mean.push_back(std::min(share, 1.0f));
    unit.evidence.window_max.push_back(std::min(4 * share, 1.0f));
    unit.evidence.steps.push_back(1 + (num_entries - i) % 300);
    unit.evidence.idle_steps.push_back(i % 50);
    unit.evidence.marked.push_back(0);
    const float* topic = &topics[topic_of(random) * head_dim];
    for (int32_t d = 0; d < head_dim; ++d) {
      unit.keys.push_back(mean[d] + topic[d] + 0.65f * normal(random));
    }
  }
  return unit;
}

std::vector<FormatCost> UsualFormats(int32_t head_dim) {
  return {MakeFormatCost({16, 16}, head_dim), MakeFormatCost({8, 8}, head_dim),
          MakeFormatCost({6, 4}, head_dim), MakeFormatCost({4, 4}, head_dim)};
}

}  // namespace condense
