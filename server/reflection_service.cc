#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <set>
#include <utility>

#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "server/services.h"

namespace condense {
namespace {

namespace reflection = grpc::reflection::v1;
using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;

// Adds `file` and all that it imports, each once.
void AddFile(const FileDescriptor* file, std::set<std::string>* seen,
             reflection::FileDescriptorResponse* response) {
  if (!seen->insert(std::string(file->name())).second) return;
  google::protobuf::FileDescriptorProto proto;
  file->CopyTo(&proto);
  proto.SerializeToString(response->add_file_descriptor_proto());
  for (int i = 0; i < file->dependency_count(); ++i) {
    AddFile(file->dependency(i), seen, response);
  }
}

void AnswerFile(const FileDescriptor* file, const std::string& asked,
                reflection::ServerReflectionResponse* response) {
  if (file == nullptr) {
    response->mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
    response->mutable_error_response()->set_error_message("not known here: " + asked);
    return;
  }
  std::set<std::string> seen;
  AddFile(file, &seen, response->mutable_file_descriptor_response());
}

const FileDescriptor* FileOfExtension(const reflection::ExtensionRequest& request) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const auto* type = pool.FindMessageTypeByName(request.containing_type());
  if (type == nullptr) return nullptr;
  const auto* extension = pool.FindExtensionByNumber(type, request.extension_number());
  return extension == nullptr ? nullptr : extension->file();
}

void AnswerExtensionNumbers(const std::string& name,
                            reflection::ServerReflectionResponse* response) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const auto* type = pool.FindMessageTypeByName(name);
  if (type == nullptr) return AnswerFile(nullptr, name, response);
  auto* numbers = response->mutable_all_extension_numbers_response();
  numbers->set_base_type_name(name);
  std::vector<const google::protobuf::FieldDescriptor*> extensions;
  pool.FindAllExtensions(type, &extensions);
  for (const auto* extension : extensions) numbers->add_extension_number(extension->number());
}

void Answer(const reflection::ServerReflectionRequest& request,
            const std::vector<std::string>& service_names,
            reflection::ServerReflectionResponse* response) {
  using Request = reflection::ServerReflectionRequest;
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  response->Clear();
  response->set_valid_host(request.host());
  *response->mutable_original_request() = request;
  switch (request.message_request_case()) {
    case Request::kListServices:
      for (const std::string& name : service_names) {
        response->mutable_list_services_response()->add_service()->set_name(name);
      }
      return;
    case Request::kFileByFilename:
      return AnswerFile(pool.FindFileByName(request.file_by_filename()), request.file_by_filename(),
                        response);
    case Request::kFileContainingSymbol:
      return AnswerFile(pool.FindFileContainingSymbol(request.file_containing_symbol()),
                        request.file_containing_symbol(), response);
    case Request::kFileContainingExtension:
      return AnswerFile(FileOfExtension(request.file_containing_extension()),
                        request.file_containing_extension().containing_type(), response);
    case Request::kAllExtensionNumbersOfType:
      return AnswerExtensionNumbers(request.all_extension_numbers_of_type(), response);
    case Request::MESSAGE_REQUEST_NOT_SET:
      break;
  }
  response->mutable_error_response()->set_error_code(grpc::StatusCode::INVALID_ARGUMENT);
  response->mutable_error_response()->set_error_message("message_request is not set");
}

// Reads a request, writes its answer, and so on. gRPC runs one reaction at a time.
class ReflectionReactor final
    : public grpc::ServerBidiReactor<reflection::ServerReflectionRequest,
                                     reflection::ServerReflectionResponse> {
 public:
  explicit ReflectionReactor(const std::vector<std::string>& service_names)
      : service_names_(service_names) {
    StartRead(&request_);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    Answer(request_, service_names_, &response_);
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&request_);
  }
  void OnDone() override { delete this; }

  const std::vector<std::string>& service_names_;
  reflection::ServerReflectionRequest request_;
  reflection::ServerReflectionResponse response_;
};

class ReflectionService final : public reflection::ServerReflection::CallbackService {
 public:
  explicit ReflectionService(std::vector<std::string> service_names)
      : service_names_(std::move(service_names)) {}

  grpc::ServerBidiReactor<reflection::ServerReflectionRequest,
                          reflection::ServerReflectionResponse>*
  ServerReflectionInfo(grpc::CallbackServerContext* /*call*/) override {
    return new ReflectionReactor(service_names_);
  }

 private:
  const std::vector<std::string> service_names_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeReflectionService(std::vector<std::string> service_names) {
  return std::make_unique<ReflectionService>(std::move(service_names));
}

}  // namespace condense
