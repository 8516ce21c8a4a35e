#include "engine/probe/canary_text.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/probe/fact_words.h"

namespace condense {
namespace {

// {p} a person, {o} a thing, {l} a place, {t} a time, {a} an adjective.
constexpr const char* kSentences[] = {
    "The {p} carried the {a} {o} to the {l} {t}.",
    "Nobody at the {l} had seen such a {a} {o} before the {p} came.",
    "{t}, the {p} and the {p} talked about the {o} for hours.",
    "It was said that a {a} {p} once lived behind the {l}.",
    "Rain fell on the {l} while the {p} looked for the {o}.",
    "The {o} was too {a} for the {p}, who left it at the {l}.",
    "When the {p} asked about the {l}, the {p} only shook their head.",
    "A {a} wind came up from the {l} and turned over the {o}.",
    "They painted the {l} {t}, because the {p} liked it that way.",
    "The {p} wrote a letter about the {a} {o} and never sent it.",
    "Between the {l} and the {l} there was nothing but {a} grass.",
    "Everyone agreed that the {o} belonged to the {p} of the {l}."};
constexpr const char* kPersons[] = {"baker",   "captain", "teacher", "gardener", "miller",
                                    "painter", "doctor",  "sailor",  "weaver",   "judge",
                                    "hunter",  "clerk",   "farmer",  "singer",   "mason"};
constexpr const char* kThings[] = {"lamp",   "basket", "clock", "ladder", "blanket",
                                   "violin", "kettle", "map",   "saddle", "mirror",
                                   "wagon",  "bell",   "boat",  "chair",  "barrel"};
constexpr const char* kPlaces[] = {"market", "harbour", "old mill", "chapel",  "bridge",
                                   "square", "orchard", "school",   "station", "river",
                                   "inn",    "forest",  "tower",    "garden",  "quarry"};
constexpr const char* kTimes[] = {"in the morning",   "before the harvest", "late at night",
                                  "after the storm",  "that winter",        "on a quiet day",
                                  "during the feast", "at first light",     "without a word"};
constexpr const char* kAdjectives[] = {"small", "heavy",  "broken", "bright", "silent", "strange",
                                       "cold",  "narrow", "old",    "green",  "gentle", "dusty"};
constexpr double kToldIn = 0.9;  // of the prompt

class Writer {
 public:
  Writer(const Tokenizer& tokenizer, uint64_t seed) : tokenizer_(tokenizer), random_(seed) {}

  std::mt19937_64* random() { return &random_; }
  uint64_t Draw(uint64_t count) { return random_() % count; }

  std::string Sentence() {
    std::string sentence = Pick(kSentences);
    for (size_t at = sentence.find('{'); at != std::string::npos; at = sentence.find('{')) {
      sentence.replace(at, 3, Word(sentence[at + 1]));
    }
    sentence[0] = absl::ascii_toupper(static_cast<unsigned char>(sentence[0]));
    return sentence;
  }

  std::vector<TokenId> Encode(const std::string& text) const { return tokenizer_.Encode(text, {}); }

 private:
  template <size_t kCount>
  const char* Pick(const char* const (&words)[kCount]) {
    return words[Draw(kCount)];
  }
  const char* Word(char kind) {
    switch (kind) {
      case 'p':
        return Pick(kPersons);
      case 'o':
        return Pick(kThings);
      case 'l':
        return Pick(kPlaces);
      case 't':
        return Pick(kTimes);
      default:
        return Pick(kAdjectives);
    }
  }

  const Tokenizer& tokenizer_;
  std::mt19937_64 random_;
};

struct Fact {
  std::string question;  // its beginning, which the answer ends
  std::string answer;
};

std::vector<Fact> DrawFacts(std::mt19937_64* random) {
  const std::vector<std::string> kinds = DrawDifferent(kFactKinds, random);
  const std::vector<std::string> names = DrawDifferent(kFactNames, random);
  std::vector<Fact> facts;
  for (int32_t i = 0; i < kFactsTogether; ++i) {
    facts.push_back(
        {FactQuestion(kinds[i], names[i], "archive"), absl::StrCat(" ", DrawFactAnswer(random))});
  }
  return facts;
}

void Append(const std::vector<TokenId>& tokens, std::vector<TokenId>* to) {
  to->insert(to->end(), tokens.begin(), tokens.end());
}

// Prose of `tokens` behind what is there, with the facts in it. What found no room is taken off.
void Tell(int32_t tokens, Writer* writer, std::vector<Fact>* facts, std::vector<TokenId>* prompt) {
  size_t planted = 0;
  while (static_cast<int32_t>(prompt->size()) < tokens) {
    Append(writer->Encode(absl::StrCat(" ", writer->Sentence())), prompt);
    const double done = static_cast<double>(prompt->size()) / tokens;
    // In the middle of its part of the first nine tenths.
    if (planted == facts->size() ||
        done < kToldIn * (static_cast<double>(planted) + 0.5) / kFactsTogether) {
      continue;
    }
    const Fact& fact = (*facts)[planted];
    const std::vector<TokenId> told =
        writer->Encode(absl::StrCat(fact.question, fact.answer, ".\n"));
    if (static_cast<double>(prompt->size() + told.size()) > kToldIn * tokens) continue;
    Append(told, prompt);
    ++planted;
  }
  facts->resize(planted);
}

void Ask(const Writer& writer, const std::vector<Fact>& facts, CanaryText* canary) {
  for (const Fact& fact : facts) {
    Append(writer.Encode(fact.question), &canary->forced);
    const auto begin = static_cast<int32_t>(canary->forced.size());
    Append(writer.Encode(fact.answer), &canary->forced);
    canary->answers.push_back({begin, static_cast<int32_t>(canary->forced.size())});
    Append(writer.Encode("."), &canary->forced);
  }
}

}  // namespace

CanaryText MakeCanaryText(const Tokenizer& tokenizer, int32_t tokens, uint64_t seed) {
  Writer writer(tokenizer, seed);
  std::vector<Fact> facts = DrawFacts(writer.random());
  CanaryText canary;
  if (tokenizer.adds_bos() && tokenizer.bos().has_value()) canary.prompt = {*tokenizer.bos()};
  Tell(tokens, &writer, &facts, &canary.prompt);
  while (static_cast<int32_t>(canary.forced.size()) < kCanaryRunUp) {
    Append(writer.Encode(absl::StrCat(" ", writer.Sentence())), &canary.forced);
  }
  // Not in the order in which they were told.
  for (size_t i = 0; i + 1 < facts.size(); ++i) {
    std::swap(facts[i], facts[i + writer.Draw(facts.size() - i)]);
  }
  Ask(writer, facts, &canary);
  return canary;
}

}  // namespace condense
