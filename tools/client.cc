#include "tools/client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "condense/v1/admin.grpc.pb.h"
#include "condense/v1/inference.grpc.pb.h"
#include "condense/v1/info.grpc.pb.h"
#include "condense/v1/text.grpc.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "kernels/base/mutex.h"
#include "tools/exit_code.h"

namespace condense {
namespace {

std::chrono::system_clock::time_point DeadlineAfter(absl::Duration timeout) {
  if (timeout == absl::InfiniteDuration()) return std::chrono::system_clock::time_point::max();
  return absl::ToChronoTime(absl::Now() + timeout);
}

// A server that is full or draining says when to come back; a lost connection does not.
bool InvitesRetry(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return false;
  return std::any_of(details.details().begin(), details.details().end(), [](const auto& detail) {
    return detail.template Is<google::rpc::RetryInfo>();
  });
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (InvitesRetry(status)) MarkRetryable(&result);
  return result;
}

class StreamReader final : public GenerateCall, private grpc::ClientReadReactor<v1::GenerateEvent> {
 public:
  StreamReader(v1::Inference::Stub* stub, const v1::GenerateRequest& request,
               absl::Duration timeout, std::function<void(const v1::GenerateEvent&)> on_event,
               std::function<void()> on_done)
      : request_(request), on_event_(std::move(on_event)), on_done_(std::move(on_done)) {
    context_.set_deadline(DeadlineAfter(timeout));
    stub->async()->GenerateStream(&context_, &request_, this);
    StartRead(&event_);
    StartCall();
  }

  ~StreamReader() override {
    Cancel();
    WaitFor(absl::InfiniteDuration());
  }

  void Cancel() override { context_.TryCancel(); }

  bool WaitFor(absl::Duration timeout) override {
    const absl::Time until = absl::Now() + timeout;
    MutexLock lock(&mutex_);
    while (!done_) {
      const absl::Duration left = until - absl::Now();
      if (left <= absl::ZeroDuration()) return false;
      // In slices: an infinite wait does not fit into the clock's arithmetic.
      ended_.WaitFor(&mutex_, absl::ToChronoNanoseconds(std::min(left, absl::Hours(1))));
    }
    return true;
  }

  absl::Status status() const override {
    MutexLock lock(&mutex_);
    return status_;
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    on_event_(event_);
    StartRead(&event_);
  }

  void OnDone(const grpc::Status& status) override {
    {
      MutexLock lock(&mutex_);
      status_ = FromGrpc(status);
    }
    if (on_done_) on_done_();
    // Under the lock to the end: the waiter may destroy this as soon as it sees `done_`.
    MutexLock lock(&mutex_);
    done_ = true;
    ended_.SignalAll();
  }

  const v1::GenerateRequest request_;
  const std::function<void(const v1::GenerateEvent&)> on_event_;
  const std::function<void()> on_done_;
  grpc::ClientContext context_;
  v1::GenerateEvent event_;

  mutable Mutex mutex_;
  CondVar ended_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// One unary call.
template <typename Request, typename Response, typename Stub>
absl::StatusOr<Response> Ask(Stub* stub,
                             grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                          Response*),
                             const Request& request, absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(DeadlineAfter(timeout));
  Response response;
  const absl::Status status = FromGrpc((stub->*method)(&context, request, &response));
  if (!status.ok()) return status;
  return response;
}

absl::Status WaitUntilReady(grpc::Channel* channel, const std::string& address,
                            absl::Duration timeout) {
  const auto deadline = DeadlineAfter(timeout);
  grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
  while (state != GRPC_CHANNEL_READY && state != GRPC_CHANNEL_TRANSIENT_FAILURE &&
         channel->WaitForStateChange(state, deadline)) {
    state = channel->GetState(true);
  }
  if (state == GRPC_CHANNEL_READY) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat(
      "no server answers at %s (%s); start one with scripts/serve or name another with --server",
      address,
      state == GRPC_CHANNEL_TRANSIENT_FAILURE
          ? "the connection failed"
          : absl::StrFormat("waited %s", absl::FormatDuration(timeout))));
}

}  // namespace

struct Client::Stubs {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Inference::Stub> inference;
  std::unique_ptr<v1::Info::Stub> info;
  std::unique_ptr<v1::Text::Stub> text;
  std::unique_ptr<v1::Admin::Stub> admin;
  absl::Duration call_timeout;
};

Client::Client(std::unique_ptr<Stubs> stubs) : stubs_(std::move(stubs)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& address,
                                                        absl::Duration timeout,
                                                        absl::Duration call_timeout) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  auto stubs = std::make_unique<Stubs>();
  stubs->call_timeout = call_timeout;
  stubs->channel =
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  const absl::Status ready = WaitUntilReady(stubs->channel.get(), address, timeout);
  if (!ready.ok()) return ready;
  stubs->inference = v1::Inference::NewStub(stubs->channel);
  stubs->info = v1::Info::NewStub(stubs->channel);
  stubs->text = v1::Text::NewStub(stubs->channel);
  stubs->admin = v1::Admin::NewStub(stubs->channel);
  return std::unique_ptr<Client>(new Client(std::move(stubs)));
}

absl::StatusOr<v1::GetServerInfoResponse> Client::ServerInfo() {
  return Ask(stubs_->info.get(), &v1::Info::Stub::GetServerInfo, v1::GetServerInfoRequest(),
             stubs_->call_timeout);
}

absl::StatusOr<v1::GetModelInfoResponse> Client::ModelInfo() {
  return Ask(stubs_->info.get(), &v1::Info::Stub::GetModelInfo, v1::GetModelInfoRequest(),
             stubs_->call_timeout);
}

absl::StatusOr<v1::GetLoadResponse> Client::Load() {
  return Ask(stubs_->info.get(), &v1::Info::Stub::GetLoad, v1::GetLoadRequest(),
             stubs_->call_timeout);
}

absl::StatusOr<v1::TokenizeResponse> Client::Tokenize(const v1::TokenizeRequest& request) {
  return Ask(stubs_->text.get(), &v1::Text::Stub::Tokenize, request, stubs_->call_timeout);
}

absl::StatusOr<v1::SetCompressionResponse> Client::SetCompression(
    const v1::SetCompressionRequest& request) {
  return Ask(stubs_->admin.get(), &v1::Admin::Stub::SetCompression, request, stubs_->call_timeout);
}

absl::StatusOr<v1::GetCompressionResponse> Client::GetCompression() {
  return Ask(stubs_->admin.get(), &v1::Admin::Stub::GetCompression, v1::GetCompressionRequest(),
             stubs_->call_timeout);
}

std::unique_ptr<GenerateCall> Client::Generate(
    const v1::GenerateRequest& request, absl::Duration timeout,
    std::function<void(const v1::GenerateEvent&)> on_event, std::function<void()> on_done) {
  return std::make_unique<StreamReader>(stubs_->inference.get(), request, timeout,
                                        std::move(on_event), std::move(on_done));
}

}  // namespace condense
