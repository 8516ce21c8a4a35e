#include <utility>

#include "condense/v1/inference.grpc.pb.h"
#include "server/admission.h"
#include "server/collect_reactor.h"
#include "server/convert_response.h"
#include "server/generate_reactor.h"
#include "server/services.h"

namespace condense {
namespace {

class InferenceService final : public v1::Inference::CallbackService {
 public:
  explicit InferenceService(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* call,
                                     const v1::GenerateRequest* request,
                                     v1::GenerateResponse* response) override {
    absl::StatusOr<GenerateCall> converted =
        ToGenerateCall(*request, CallRequestId(*call), CallDeadline(*call), context_.model());
    if (!converted.ok()) return RefuseInvalid(converted.status());
    const Request& generate = converted->request;
    const TokenFormat format = {.tokenizer = &context_.engine->tokenizer(),
                                .output = converted->output,
                                .logprobs = generate.num_logprobs >= 0};
    response->set_request_id(generate.id);
    response->set_seed(generate.sampling.seed);
    if (converted->output.prompt) {
      response->mutable_prompt_token_ids()->Add(generate.prompt.begin(), generate.prompt.end());
    }
    return CollectReactor::Start(
        context_, std::move(converted->request), [response, format](const TokenEvent& event) {
          if (event.kind == TokenEvent::Kind::kTokens) {
            AppendTokens(event, format, response->mutable_text(), response->mutable_tokens());
          } else if (event.kind == TokenEvent::Kind::kFinished) {
            FillFinished(event, response);
          }
        });
  }

  grpc::ServerWriteReactor<v1::GenerateEvent>* GenerateStream(
      grpc::CallbackServerContext* call, const v1::GenerateRequest* request) override {
    return GenerateReactor::Start(context_, *call, *request);
  }

  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* call,
                                  const v1::ScoreRequest* request,
                                  v1::ScoreResponse* response) override {
    absl::StatusOr<Request> score =
        ToScoreRequest(*request, CallRequestId(*call), CallDeadline(*call), context_.model());
    if (!score.ok()) return RefuseInvalid(score.status());
    response->set_request_id(score->id);
    response->mutable_token_ids()->Add(score->prompt.begin(), score->prompt.end());
    return CollectReactor::Start(context_, *std::move(score), [response](const TokenEvent& event) {
      if (event.kind == TokenEvent::Kind::kFinished) FillScore(event, response);
    });
  }

 private:
  grpc::ServerUnaryReactor* RefuseInvalid(const absl::Status& status) {
    CountInvalid(context_, status);
    return CollectReactor::Refuse(context_, status);
  }

  const ServiceContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeInferenceService(const ServiceContext& context) {
  return std::make_unique<InferenceService>(context);
}

}  // namespace condense
