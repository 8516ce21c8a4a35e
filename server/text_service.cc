#include <grpcpp/grpcpp.h>

#include "condense/v1/text.grpc.pb.h"
#include "engine/utf8.h"
#include "kernels/base/status_macros.h"
#include "server/convert_status.h"
#include "server/service_context.h"
#include "server/services.h"

namespace condense {
namespace {

grpc::ServerUnaryReactor* FinishWith(grpc::CallbackServerContext* call,
                                     const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

class TextService final : public v1::Text::CallbackService {
 public:
  explicit TextService(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* call,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override {
    return FinishWith(call, AnswerTokenize(*request, response));
  }

  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* call,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override {
    return FinishWith(call, AnswerDetokenize(*request, response));
  }

  grpc::ServerUnaryReactor* RenderChat(grpc::CallbackServerContext* call,
                                       const v1::RenderChatRequest* request,
                                       v1::RenderChatResponse* response) override {
    return FinishWith(call, AnswerRenderChat(*request, response));
  }

 private:
  absl::Status AnswerTokenize(const v1::TokenizeRequest& request, v1::TokenizeResponse* response) {
    ASSIGN_OR_RETURN(const std::vector<TokenId> ids, ToTokenIds(request, context_.model()));
    response->mutable_token_ids()->Add(ids.begin(), ids.end());
    return absl::OkStatus();
  }

  absl::Status AnswerDetokenize(const v1::DetokenizeRequest& request,
                                v1::DetokenizeResponse* response) {
    ASSIGN_OR_RETURN(const std::vector<TokenId> ids, ToTokenIds(request, context_.model()));
    response->set_raw(context_.engine->tokenizer().Decode(ids, request.special()));
    response->set_text(ReplaceInvalidUtf8(response->raw()));
    return absl::OkStatus();
  }

  absl::Status AnswerRenderChat(const v1::RenderChatRequest& request,
                                v1::RenderChatResponse* response) {
    const ServedModel model = context_.model();
    ASSIGN_OR_RETURN(const std::vector<ChatMessage> messages,
                     ToChatMessages(request.chat(), model.limits));
    const bool prompt = AddGenerationPrompt(request.chat());
    ASSIGN_OR_RETURN(*response->mutable_text(), model.chat_template.Render(messages, prompt));
    ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                     model.chat_template.Encode(model.tokenizer, messages, prompt));
    response->mutable_token_ids()->Add(ids.begin(), ids.end());
    return absl::OkStatus();
  }

  const ServiceContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeTextService(const ServiceContext& context) {
  return std::make_unique<TextService>(context);
}

}  // namespace condense
