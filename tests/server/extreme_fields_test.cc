// Every number that a client may send, at its extremes; found by reflection, so that a new field is
// tested from its first day.

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/convert_request.h"
#include "tests/server/limits_page.h"
#include "tests/support/fake_tokenizer.h"

namespace condense {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using ::testing::HasSubstr;

// One number: its name in refusals, and how to put it into a request at each of its extremes.
struct Number {
  std::string name;
  std::vector<std::function<void(v1::GenerateRequest*)>> extremes;
};

using Place = std::function<Message*(v1::GenerateRequest*)>;

std::vector<std::function<void(Message*)>> Extremes(const FieldDescriptor* field) {
  std::vector<std::function<void(Message*)>> setters;
  const bool repeated = field->is_repeated();
  const auto add = [&](auto value, auto set_one, auto add_one) {
    setters.push_back([=](Message* message) {
      const Reflection& reflection = *message->GetReflection();
      if (repeated) {
        (reflection.*add_one)(message, field, value);
      } else {
        (reflection.*set_one)(message, field, value);
      }
    });
  };
  using Float = std::numeric_limits<float>;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      for (const int32_t value : {std::numeric_limits<int32_t>::min(), -2147483647, -1000001,
                                  1000001, std::numeric_limits<int32_t>::max()}) {
        add(value, &Reflection::SetInt32, &Reflection::AddInt32);
      }
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      for (const uint64_t value : {uint64_t{0}, std::numeric_limits<uint64_t>::max()}) {
        add(value, &Reflection::SetUInt64, &Reflection::AddUInt64);
      }
      break;
    case FieldDescriptor::CPPTYPE_FLOAT:
      for (const float value : {Float::quiet_NaN(), Float::signaling_NaN(), Float::infinity(),
                                -Float::infinity(), Float::max(), Float::lowest()}) {
        add(value, &Reflection::SetFloat, &Reflection::AddFloat);
      }
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      using Double = std::numeric_limits<double>;
      for (const double value : {Double::quiet_NaN(), Double::infinity(), -Double::infinity(),
                                 Double::max(), Double::lowest(), Double::denorm_min(), -0.0}) {
        add(value, &Reflection::SetDouble, &Reflection::AddDouble);
      }
      break;
    case FieldDescriptor::CPPTYPE_STRING:
    case FieldDescriptor::CPPTYPE_BOOL:
      break;
    default:
      ADD_FAILURE() << field->full_name() << " has a type that is not tested here";
  }
  return setters;
}

// Keys and values of a map whose keys are ids.
void CollectMap(const FieldDescriptor* field, const std::string& name, const Place& place,
                std::vector<Number>* numbers) {
  const FieldDescriptor* key = field->message_type()->field(0);
  const FieldDescriptor* value = field->message_type()->field(1);
  ASSERT_EQ(key->cpp_type(), FieldDescriptor::CPPTYPE_INT32);
  for (const FieldDescriptor* extreme : {key, value}) {
    Number number{.name = name + (extreme == key ? " key" : "")};
    for (const auto& set : Extremes(extreme)) {
      number.extremes.push_back([=](v1::GenerateRequest* request) {
        Message* message = place(request);
        Message* entry = message->GetReflection()->AddMessage(message, field);
        entry->GetReflection()->SetInt32(entry, key, 1);
        set(entry);
      });
    }
    numbers->push_back(std::move(number));
  }
}

void Collect(const Descriptor* type, const std::string& prefix, const Place& place,
             std::vector<Number>* numbers) {
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    const std::string name = prefix + std::string(field->name());
    if (field->is_map()) {
      CollectMap(field, name, place, numbers);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (field->is_repeated()) continue;  // messages of a chat: text only
      // Ids are named by what holds them.
      const bool ids = field->message_type() == v1::TokenIds::descriptor();
      Collect(
          field->message_type(), ids ? prefix : name + ".",
          [place, field](v1::GenerateRequest* request) {
            Message* message = place(request);
            return message->GetReflection()->MutableMessage(message, field);
          },
          numbers);
      if (ids) numbers->back().name = name;
    } else {
      Number number{.name = name};
      for (const auto& set : Extremes(field)) {
        number.extremes.push_back(
            [place, set](v1::GenerateRequest* request) { set(place(request)); });
      }
      if (!number.extremes.empty()) numbers->push_back(std::move(number));
    }
  }
}

class ExtremeFieldsTest : public ::testing::Test {
 protected:
  ExtremeFieldsTest() : chat_template_(ChatTemplate::Recognise("")) {
    info_.vocab_size = 26;
    info_.max_context = 16;
    Collect(
        v1::GenerateRequest::descriptor(), "",
        [](v1::GenerateRequest* request) -> Message* { return request; }, &numbers_);
  }

  absl::Status Convert(const std::function<void(v1::GenerateRequest*)>& change) const {
    v1::GenerateRequest request;
    request.set_text("a");
    change(&request);
    return ToGenerateCall(request, "", absl::InfiniteFuture(),
                          {info_, tokenizer_, chat_template_, limits_})
        .status();
  }

  ModelInfo info_;
  FakeTokenizer tokenizer_;
  ChatTemplate chat_template_;
  Limits limits_;
  std::vector<Number> numbers_;
};

TEST_F(ExtremeFieldsTest, ExtremesAreRefusedWithTheDocumentedRange) {
  std::map<std::string, std::string> ranges;
  for (const std::vector<std::string>& row : LimitsTable("Ranges of numbers")) {
    ASSERT_EQ(row.size(), 2u);
    ranges[row[0]] = absl::StrReplaceAll(row[1], {{"vocabulary - 1", "25"},
                                                  {"vocabulary", "26"},
                                                  {"context", "16"},
                                                  {"max_logprobs", "20"}});
  }
  for (const Number& number : numbers_) {
    SCOPED_TRACE(number.name);
    ASSERT_EQ(ranges.count(number.name), 1u) << "not in the page";
    const std::string& range = ranges[number.name];
    for (const auto& extreme : number.extremes) {
      const absl::Status status = Convert(extreme);
      if (range == "any") {
        EXPECT_TRUE(status.ok()) << status;
        continue;
      }
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      const std::string message(status.message());
      EXPECT_EQ(message.rfind(number.name, 0), 0u) << message;
      EXPECT_THAT(message, HasSubstr(absl::StrCat("; must be in ", range)));
    }
    ranges.erase(number.name);
  }
  for (const auto& [name, range] : ranges) ADD_FAILURE() << name << " is in the page only";
}

TEST_F(ExtremeFieldsTest, SmallFloatsAreTakenOrRefusedByRange) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const auto sampling = [&](auto set) {
    return Convert([&](v1::GenerateRequest* request) { set(request->mutable_sampling()); });
  };
  EXPECT_TRUE(sampling([&](auto* s) { s->set_temperature(tiny); }).ok());
  EXPECT_TRUE(sampling([&](auto* s) { s->set_temperature(-0.0f); }).ok());
  EXPECT_TRUE(sampling([&](auto* s) { s->set_top_p(tiny); }).ok());
  EXPECT_FALSE(sampling([&](auto* s) { s->set_top_p(-0.0f); }).ok());
  EXPECT_FALSE(
      sampling([&](auto* s) { s->set_repetition_penalty(tiny); }).ok());  // would overflow a logit
  EXPECT_TRUE(sampling([&](auto* s) { s->set_repetition_penalty(0.01f); }).ok());
  EXPECT_FALSE(sampling([&](auto* s) { s->set_temperature(-tiny); }).ok());
  EXPECT_FALSE(sampling([&](auto* s) { s->set_min_p(-tiny); }).ok());
}

}  // namespace
}  // namespace condense
