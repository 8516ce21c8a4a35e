"""What a client should not send, as bytes on the wire: the server answers, refuses, and serves the next one."""

import random

import grpc
import pytest

from condense.v1 import admin_pb2, common_pb2, inference_pb2, inference_pb2_grpc, info_pb2, text_pb2, text_pb2_grpc
from server_process import TINY_MODEL, ServerProcess

MIB = 1 << 20
METHODS = sorted(
    (f"/{service.full_name}/{method.name}", method)
    for module in (inference_pb2, text_pb2, info_pb2, admin_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods if method.name != "Drain")
PATHS = [path for path, _ in METHODS]
REFUSED = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND}
# What gRPC itself says, of its C++ callback services, about bytes that are no message.
NO_MESSAGE = grpc.StatusCode.UNIMPLEMENTED


@pytest.fixture(scope="module")
def server():
    with ServerProcess(TINY_MODEL, "--kv_memory=64MiB", "--max_message_bytes=80MiB") as process:
        yield process
        assert process.process.poll() is None
        assert process.stop() == 0


@pytest.fixture
def channel(server):
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.address, options=options) as channel:
        yield channel
        # Whatever came before: the next request is served.
        answer = inference_pb2_grpc.InferenceStub(channel).Generate(small_request(), timeout=60)
        assert answer.usage.completion_tokens == 2
        assert server.process.poll() is None


def small_request():
    request = inference_pb2.GenerateRequest(text="hello")
    request.stopping.max_tokens = 2
    request.stopping.ignore_eos = True
    return request


def send(channel, path, data, timeout=60):
    """The call's code and message."""
    method = dict(METHODS)[path]
    make = channel.unary_stream if method.name == "GenerateStream" else channel.unary_unary
    call = make(path, request_serializer=lambda bytes_: bytes_, response_deserializer=lambda bytes_: bytes_)
    try:
        answer = call(data, timeout=timeout)
        if method.name == "GenerateStream":
            list(answer)
        return grpc.StatusCode.OK, ""
    except grpc.RpcError as error:
        return error.code(), error.details()


def refusal(channel, request):
    code, details = send(channel, "/condense.v1.Inference/GenerateStream", request.SerializeToString())
    assert code == grpc.StatusCode.INVALID_ARGUMENT, details
    assert len(details) < 2048
    return details


@pytest.mark.parametrize("path", PATHS)
def test_an_empty_message_is_answered(channel, path):
    code, details = send(channel, path, b"")
    if path.startswith("/condense.v1.Inference/"):
        assert code == grpc.StatusCode.INVALID_ARGUMENT and "input is not set" in details
    else:
        assert code == grpc.StatusCode.OK or code in REFUSED, details


@pytest.mark.parametrize("path", PATHS)
def test_bytes_that_are_no_message_are_refused(channel, path):
    rng = random.Random(path)
    for size in [1, 2, 3, 8, 64, 1000, 100000] * 8:
        data = bytes([0x0B]) + rng.randbytes(size)  # a group that need not end
        code, details = send(channel, path, data)
        assert code == grpc.StatusCode.OK or code in REFUSED | {NO_MESSAGE}, details
    for depth in (10, 101, 100000):
        code, _ = send(channel, path, b"\x0b" * depth)
        assert code == NO_MESSAGE


def test_a_message_cut_anywhere_is_refused_or_read(channel):
    request = small_request()
    request.sampling.logit_bias.update({1: 1.0})
    request.stopping.stop.append("end")
    request.output.logprobs = 1
    request.compression.preset = "light"
    request.compression.ratio = 2.5
    whole = request.SerializeToString()
    for size in range(len(whole)):
        code, details = send(channel, "/condense.v1.Inference/Generate", whole[:size])
        assert code == grpc.StatusCode.OK or code in REFUSED | {NO_MESSAGE}, details


def test_text_that_is_not_utf8_is_refused(channel):
    code, _ = send(channel, "/condense.v1.Text/Tokenize", b"\x0a\x02\xff\xfe")
    assert code == NO_MESSAGE


@pytest.mark.parametrize("path", PATHS)
def test_unknown_fields_are_ignored(channel, path):
    known = small_request().SerializeToString() if "/Generate" in path else b""
    unknown = b"\xaa\x7d\x03abc" * 100000  # field 2005, three bytes
    assert send(channel, path, known + unknown) == send(channel, path, known)


def test_64_mib_of_anything(channel):
    request = inference_pb2.GenerateRequest(text="x" * (64 * MIB))
    assert refusal(channel, request) == f"text has {64 * MIB} bytes; at most {4 * MIB}"

    request = inference_pb2.GenerateRequest()
    request.chat.messages.add(role="user", content="x" * (64 * MIB))
    assert refusal(channel, request) == f"chat.messages has {64 * MIB} bytes; at most {4 * MIB}"

    request = inference_pb2.GenerateRequest()
    request.chat.messages.add(role="u" * (64 * MIB), content="x")
    assert "chat.messages[0].role" in refusal(channel, request)

    request = inference_pb2.GenerateRequest(token_ids=common_pb2.TokenIds(ids=[5] * (64 * MIB)))
    assert f"token_ids has {64 * MIB} ids; at most" in refusal(channel, request)

    for field in ("request_id", "tenant"):
        request = small_request()
        setattr(request, field, "x" * (64 * MIB))
        assert f"{field} has {64 * MIB} bytes; at most" in refusal(channel, request)

    request = small_request()
    request.model = "x" * (64 * MIB)
    assert "model has" in refusal(channel, request)

    request = small_request()
    request.stopping.stop.append("x" * (64 * MIB))
    assert "stopping.stop[0]" in refusal(channel, request)

    for field in ("preset", "policy"):
        request = small_request()
        setattr(request.compression, field, "x" * (64 * MIB))
        assert refusal(channel, request) == f"compression.{field} has {64 * MIB} bytes; at most 64"

    unknown = b"\xaa\x7d\x80\x80\x80\x20" + bytes(64 * MIB)
    code, details = send(channel, "/condense.v1.Inference/Generate", small_request().SerializeToString() + unknown)
    assert code == grpc.StatusCode.OK, details

    stub = text_pb2_grpc.TextStub(channel)
    with pytest.raises(grpc.RpcError) as error:
        stub.Tokenize(text_pb2.TokenizeRequest(text="x" * (64 * MIB)), timeout=60)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as error:
        stub.Detokenize(text_pb2.DetokenizeRequest(token_ids=[5] * (64 * MIB)), timeout=60)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_million_of_everything_that_repeats(channel):
    million = 10**6
    request = small_request()
    request.stopping.stop.extend(["x"] * million)
    assert refusal(channel, request) == "stopping.stop has 1000000 entries; at most 16"

    request = small_request()
    request.stopping.stop_token_ids.extend([1] * million)
    assert refusal(channel, request) == "stopping.stop_token_ids has 1000000 entries; at most 64"

    request = small_request()
    request.sampling.logit_bias.update({key: 1.0 for key in range(million)})
    assert refusal(channel, request) == "sampling.logit_bias has 1000000 entries; at most 1024"

    request = inference_pb2.GenerateRequest()
    request.chat.messages.extend([common_pb2.ChatMessage(role="user")] * million)
    assert refusal(channel, request) == "chat.messages has 1000000 entries; at most 1024"


def test_ids_out_of_range(channel):
    for bad in (-2**31, -1, 288, 2**31 - 1):
        request = inference_pb2.GenerateRequest(token_ids=common_pb2.TokenIds(ids=[5, bad]))
        assert refusal(channel, request) == f"token_ids[1] is {bad}; must be in [0, 287]"
        request = small_request()
        request.stopping.stop_token_ids.append(bad)
        assert refusal(channel, request) == f"stopping.stop_token_ids[0] is {bad}; must be in [0, 287]"
        request = small_request()
        request.sampling.logit_bias[bad] = 1
        assert refusal(channel, request) == f"sampling.logit_bias key is {bad}; must be in [0, 287]"
        with pytest.raises(grpc.RpcError) as error:
            text_pb2_grpc.TextStub(channel).Detokenize(text_pb2.DetokenizeRequest(token_ids=[bad]), timeout=60)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_every_token_forbidden_ends_one_request_only(channel):
    request = small_request()
    request.sampling.logit_bias.update({key: -100.0 for key in range(288)})
    code, _ = send(channel, "/condense.v1.Inference/Generate", request.SerializeToString())
    assert code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_a_deep_chat_history(channel):
    chat = common_pb2.Chat()
    for turn in range(1024):
        chat.messages.add(role="assistant" if turn % 2 else "user", content="hi")
    rendered = text_pb2_grpc.TextStub(channel).RenderChat(text_pb2.RenderChatRequest(chat=chat), timeout=60)
    assert rendered.text.count("hi") >= 1024
    # Longer than the tiny model's context.
    details = refusal(channel, inference_pb2.GenerateRequest(chat=chat))
    assert f"prompt has {len(rendered.token_ids)} tokens; at most" in details
    chat.messages.add(role="user", content="hi")
    assert refusal(channel, inference_pb2.GenerateRequest(chat=chat)) == "chat.messages has 1025 entries; at most 1024"


def test_an_unknown_method_is_unimplemented(channel):
    call = channel.unary_unary("/condense.v1.Inference/Nothing", request_serializer=lambda bytes_: bytes_,
                               response_deserializer=lambda bytes_: bytes_)
    with pytest.raises(grpc.RpcError) as error:
        call(b"", timeout=10)
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
