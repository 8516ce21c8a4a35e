#ifndef CONDENSE_ENGINE_PROBE_FACT_WORDS_H_
#define CONDENSE_ENGINE_PROBE_FACT_WORDS_H_

// The words of planted facts: "The access code of the Falcon archive is 48213."

#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace condense {

// Facts that stand in one text. Each is of another kind: with one kind for all a small model mixes
// them up even in the full cache, and what it cannot answer there measures nothing.
inline constexpr int32_t kFactsTogether = 4;
inline constexpr const char* kFactKinds[kFactsTogether] = {"access code", "phone number",
                                                           "locker number", "serial number"};
inline constexpr const char* kFactNames[] = {
    "Falcon", "Granite", "Harbor",  "Juniper", "Lantern", "Meadow", "Orchid",  "Pioneer",
    "Quartz", "Raven",   "Saffron", "Timber",  "Violet",  "Walnut", "Copper",  "Dolphin",
    "Ember",  "Glacier", "Indigo",  "Jasper",  "Kestrel", "Lotus",  "Marble",  "Nectar",
    "Onyx",   "Pepper",  "Silver",  "Tulip",   "Velvet",  "Willow", "Crimson", "Badger"};

// kFactsTogether different ones.
template <size_t kCount>
std::vector<std::string> DrawDifferent(const char* const (&words)[kCount],
                                       std::mt19937_64* random) {
  std::vector<std::string> drawn(std::begin(words), std::end(words));
  for (size_t i = 0; i < kFactsTogether; ++i) {
    std::swap(drawn[i], drawn[i + (*random)() % (drawn.size() - i)]);
  }
  drawn.resize(kFactsTogether);
  return drawn;
}

// The beginning of a fact, which the answer ends.
inline std::string FactQuestion(std::string_view kind, std::string_view name,
                                std::string_view place) {
  return absl::StrCat("\nThe ", std::string(kind), " of the ", std::string(name), " ",
                      std::string(place), " is");
}
inline std::string DrawFactAnswer(std::mt19937_64* random) {
  return absl::StrCat(10000 + (*random)() % 90000);
}

}  // namespace condense

#endif  // CONDENSE_ENGINE_PROBE_FACT_WORDS_H_
