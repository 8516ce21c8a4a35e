"""The server as a client in another language sees it: generated code, reflection, signals, exit status."""

import os
import signal
import subprocess
import threading
import time

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from condense.v1 import admin_pb2, admin_pb2_grpc, common_pb2, inference_pb2, inference_pb2_grpc, info_pb2, info_pb2_grpc
from condense.v1 import text_pb2, text_pb2_grpc
from server_process import DEMO_MODEL, TINY_MODEL, ServerProcess

HAS_DEMO_MODEL = os.path.exists(DEMO_MODEL)
MODEL = DEMO_MODEL if HAS_DEMO_MODEL else TINY_MODEL
SERVICES = ["condense.v1.Inference", "condense.v1.Text", "condense.v1.Info", "condense.v1.Admin"]

needs_demo_model = pytest.mark.skipif(
    not HAS_DEMO_MODEL, reason="the tiny model ends its requests before a client can act; fetch the demo model")


@pytest.fixture(scope="module")
def server():
    # Texts are compared, and when a swap comes in depends on the machine.
    with ServerProcess(MODEL, "--kv_memory=256MiB", "--log_level=debug", "--preset=off") as process:
        yield process


@pytest.fixture
def channel(server):
    with server.channel() as channel:
        yield channel


def long_request(**fields):
    request = inference_pb2.GenerateRequest(**{"text": "Once upon a time", **fields})
    request.stopping.max_tokens = 400
    request.stopping.ignore_eos = True
    request.sampling.temperature = 0
    return request


def wait_for(condition, seconds=30):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "this took too long"
        time.sleep(0.02)


def load(channel):
    return info_pb2_grpc.InfoStub(channel).GetLoad(info_pb2.GetLoadRequest(), timeout=10)


def is_idle(channel):
    now = load(channel)
    return now.running == 0 and now.queued == 0 and now.kv_bytes_used == 0


def test_streams_text(channel):
    request = inference_pb2.GenerateRequest()
    request.chat.messages.add(role="user", content="What is the capital of France?")
    request.sampling.temperature = 0
    request.stopping.max_tokens = 40
    request.output.prompt = True
    events = list(inference_pb2_grpc.InferenceStub(channel).GenerateStream(request, timeout=60))
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[:2] == ["accepted", "prompt"] and kinds[-1] == "finished"
    assert set(kinds[2:-1]) == {"tokens"}
    finished = events[-1].finished
    ids = [token.token_id for event in events for token in event.tokens.tokens]
    assert len(ids) == finished.usage.completion_tokens > 0
    assert finished.usage.prompt_tokens == len(events[1].prompt.token_ids)
    assert finished.receipt.ratio == 1.0


@needs_demo_model
def test_the_demo_model_knows_a_capital(channel):
    request = inference_pb2.GenerateRequest(text="The capital of France is")
    request.sampling.temperature = 0
    request.stopping.max_tokens = 4
    answer = inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=60)
    assert answer.text.startswith(" Paris")


def test_unary_equals_stream(channel):
    stub = inference_pb2_grpc.InferenceStub(channel)
    request = long_request()
    request.stopping.max_tokens = 24
    streamed = "".join(event.tokens.text for event in stub.GenerateStream(request, timeout=60))
    assert stub.Generate(request, timeout=60).text == streamed


def test_client_made_from_reflection_only(server):
    with server.channel() as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert set(SERVICES) <= set(database.get_services())
        pool = descriptor_pool.DescriptorPool(database)
        method = pool.FindServiceByName("condense.v1.Inference").FindMethodByName("GenerateStream")
        request_class = message_factory.GetMessageClass(method.input_type)
        event_class = message_factory.GetMessageClass(method.output_type)
        call = channel.unary_stream("/condense.v1.Inference/GenerateStream",
                                    request_serializer=request_class.SerializeToString,
                                    response_deserializer=event_class.FromString)
        request = request_class(text="Once upon a time")
        request.stopping.max_tokens = 8
        request.stopping.ignore_eos = True
        events = list(call(request, timeout=60))
        assert sum(len(event.tokens.tokens) for event in events) == 8


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_lists_every_service(channel, version):
    call = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                                 request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                                 response_deserializer=reflection_pb2.ServerReflectionResponse.FromString)
    answer = next(call(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=10))
    assert set(SERVICES) <= {service.name for service in answer.list_services_response.service}


@needs_demo_model
def test_cancel_frees_the_request(channel):
    call = inference_pb2_grpc.InferenceStub(channel).GenerateStream(long_request(), timeout=60)
    for event in call:
        if event.WhichOneof("event") == "tokens":
            break
    assert load(channel).running == 1
    call.cancel()
    wait_for(lambda: is_idle(channel))


@needs_demo_model
def test_deadline_frees_the_request(channel):
    with pytest.raises(grpc.RpcError) as error:
        list(inference_pb2_grpc.InferenceStub(channel).GenerateStream(long_request(), timeout=0.3))
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_for(lambda: is_idle(channel))


@needs_demo_model
def test_abort_ends_a_stream(channel):
    call = inference_pb2_grpc.InferenceStub(channel).GenerateStream(long_request(request_id="victim"), timeout=60)
    next(call)
    admin = admin_pb2_grpc.AdminStub(channel)
    assert admin.Abort(admin_pb2.AbortRequest(request_id="victim"), timeout=10).found
    last = None
    with pytest.raises(grpc.RpcError) as error:
        for event in call:
            last = event
    assert error.value.code() == grpc.StatusCode.CANCELLED
    assert last.error.code == grpc.StatusCode.CANCELLED.value[0]


BAD_REQUESTS = {
    "temperature": (lambda r: setattr(r.sampling, "temperature", -1), ["sampling.temperature", "-1", "[0, 100]"]),
    "not a number": (lambda r: setattr(r.sampling, "temperature", float("nan")),
                     ["sampling.temperature", "nan", "[0, 100]"]),
    "top_p": (lambda r: setattr(r.sampling, "top_p", 1.5), ["sampling.top_p", "1.5", "(0, 1]"]),
    "top_k": (lambda r: setattr(r.sampling, "top_k", -3), ["sampling.top_k", "-3", "[0, "]),
    "min_p": (lambda r: setattr(r.sampling, "min_p", 2), ["sampling.min_p", "2", "[0, 1]"]),
    "infinite penalty": (lambda r: setattr(r.sampling, "presence_penalty", float("inf")),
                         ["sampling.presence_penalty", "inf", "[-10, 10]"]),
    "logit_bias": (lambda r: r.sampling.logit_bias.update({3: 1000}), ["sampling.logit_bias[3]", "1000", "100]"]),
    "max_tokens": (lambda r: setattr(r.stopping, "max_tokens", 2**31 - 1),
                   ["stopping.max_tokens", "2147483647", "[1, "]),
    "stop strings": (lambda r: r.stopping.stop.extend(["x"] * 100000), ["stopping.stop", "100000", "16"]),
    "stop string": (lambda r: r.stopping.stop.append("x" * 1000), ["stopping.stop[0]", "1000", "256"]),
    "logprobs": (lambda r: setattr(r.output, "logprobs", 1000), ["output.logprobs", "1000", "[0, 20]"]),
    "token id": (lambda r: r.token_ids.ids.append(-5), ["token_ids[0]", "-5", "[0, "]),
    "preset": (lambda r: setattr(r.compression, "preset", "tiny"),
               ["compression.preset", "tiny", "off, lossless, light, balanced, aggressive"]),
    "policy": (lambda r: setattr(r.compression, "policy", ""), ["compression.policy", "\"\"", "none, balanced"]),
    "ratio": (lambda r: setattr(r.compression, "ratio", 1e308), ["compression.ratio", "1e+308", "[1, 16]"]),
    "ratio not a number": (lambda r: setattr(r.compression, "ratio", float("nan")),
                           ["compression.ratio", "nan", "[1, 16]"]),
    "ratio beside off": (lambda r: r.compression.MergeFrom(common_pb2.Compression(preset="off", ratio=4)),
                         ["compression.ratio", "4", "off"]),
    "priority": (lambda r: setattr(r, "priority", 1000), ["priority", "1000", "[-100, 100]"]),
    "tenant": (lambda r: setattr(r, "tenant", "x" * 100), ["tenant", "100", "64"]),
    "request id": (lambda r: setattr(r, "request_id", "x" * 1000), ["request_id", "1000", "128"]),
    "empty text": (lambda r: setattr(r, "text", ""), ["prompt", "0 tokens", "1"]),
    "no input": (lambda r: r.ClearField("text"), ["input", "not set", "text, token_ids, chat"]),
    "chat role": (lambda r: r.chat.messages.add(role="judge", content="x"), ["judge"]),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_bad_request_names_field_value_and_limit(channel, name):
    spoil, expected = BAD_REQUESTS[name]
    request = inference_pb2.GenerateRequest(text="x")
    spoil(request)
    with pytest.raises(grpc.RpcError) as error:
        list(inference_pb2_grpc.InferenceStub(channel).GenerateStream(request, timeout=10))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    for part in expected:
        assert part in error.value.details()


def test_a_message_above_the_limit_is_refused(server):
    with grpc.insecure_channel(server.address, options=[("grpc.max_send_message_length", -1)]) as channel:
        request = inference_pb2.GenerateRequest(text="x" * (64 << 20))
        with pytest.raises(grpc.RpcError) as error:
            list(inference_pb2_grpc.InferenceStub(channel).GenerateStream(request, timeout=60))
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_unknown_fields_are_ignored(channel):
    call = channel.unary_unary("/condense.v1.Text/Tokenize", request_serializer=lambda data: data,
                               response_deserializer=text_pb2.TokenizeResponse.FromString)
    known = text_pb2.TokenizeRequest(text="hello").SerializeToString()
    unknown = b"\xaa\x7d\x03abc"  # field 2005, three bytes
    assert call(known + unknown, timeout=10).token_ids == call(known, timeout=10).token_ids


def test_text_round_trip(channel):
    stub = text_pb2_grpc.TextStub(channel)
    text = "Grüße, 世界! 👋🏽\n\tdef f(x): return x<|im_end|>"
    ids = stub.Tokenize(text_pb2.TokenizeRequest(text=text), timeout=10).token_ids
    assert stub.Detokenize(text_pb2.DetokenizeRequest(token_ids=ids), timeout=10).text == text


def test_score(channel):
    stub = inference_pb2_grpc.InferenceStub(channel)
    scored = stub.Score(inference_pb2.ScoreRequest(text="The capital of France is Paris."), timeout=60)
    assert len(scored.logprobs) == len(scored.token_ids) - 1
    assert all(logprob <= 0 for logprob in scored.logprobs)
    assert scored.mean_nll == pytest.approx(-sum(scored.logprobs) / len(scored.logprobs), rel=1e-4)


def test_health(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    for name in ["", *SERVICES]:
        answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as error:
        stub.Check(health_pb2.HealthCheckRequest(service="nothing"), timeout=10)
    assert error.value.code() == grpc.StatusCode.NOT_FOUND


def test_compression_is_changed_and_told():
    with ServerProcess(TINY_MODEL, "--kv_memory=16MiB") as server, server.channel() as channel:
        admin = admin_pb2_grpc.AdminStub(channel)

        def get():
            return admin.GetCompression(admin_pb2.GetCompressionRequest(), timeout=10).state

        def change(**fields):
            return admin.SetCompression(admin_pb2.SetCompressionRequest(**fields), timeout=10).state

        assert (get().preset, get().mode, get().ratio) == ("balanced", "compacting", 4.35)
        assert change(compression=common_pb2.Compression(preset="light")).preset == "light"
        assert change(paused=True).mode == "holding"
        request = inference_pb2.GenerateRequest(text="hello")
        request.stopping.max_tokens = 2
        stub = inference_pb2_grpc.InferenceStub(channel)
        assert stub.Generate(request, timeout=60).receipt.mode == "holding"
        assert (get().preset, get().paused) == ("light", True)
        assert change(paused=False, compression=common_pb2.Compression(preset="off")).mode == "uncompressed"
        with pytest.raises(grpc.RpcError) as error:
            change(paused=True, compression=common_pb2.Compression(ratio=-1))
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert error.value.details() == "compression.ratio is -1; must be in [1, 16]"
        assert (get().preset, get().paused) == ("off", False)
        info = info_pb2_grpc.InfoStub(channel).GetServerInfo(info_pb2.GetServerInfoRequest(), timeout=10)
        assert (info.compression_mode, info.compression_preset) == ("uncompressed", "off")
        assert server.stop() == 0


@needs_demo_model
def test_a_long_request_is_compacted_unless_it_or_the_operator_says_no():
    def ask(preset=None):
        request = long_request(text="The harbour town wakes before the sun does. " * 70)
        request.stopping.max_tokens = 80
        if preset:
            request.compression.preset = preset
        return stub.Generate(request, timeout=300).receipt

    with ServerProcess(MODEL, "--kv_memory=256MiB") as server, server.channel() as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        # The worker gives way to the decoding, so how much it manages depends on the machine.
        for _ in range(10):
            receipt = ask()
            if receipt.swaps_accepted > 0:
                break
        assert receipt.swaps_accepted > 0
        assert receipt.preset == "balanced" and receipt.mode == "compacting"
        assert receipt.bytes_held < receipt.bytes_16bit
        assert receipt.ratio == pytest.approx(receipt.bytes_16bit / receipt.bytes_held)
        assert 0 < receipt.min_hit_ratio <= 1 and receipt.max_output_error > 0

        admin = admin_pb2_grpc.AdminStub(channel)
        state = admin.GetCompression(admin_pb2.GetCompressionRequest(), timeout=10).state
        assert state.swaps.accepted >= receipt.swaps_accepted
        assert [value for name, value in server.metrics().items() if 'outcome="accepted"' in name][0] > 0

        uncompressed = ask("off")
        admin.SetCompression(admin_pb2.SetCompressionRequest(paused=True), timeout=10)
        paused = ask()
        for receipt in (uncompressed, paused):
            assert (receipt.ratio, receipt.swaps_accepted, receipt.min_hit_ratio) == (1.0, 0, 1.0)
        assert (uncompressed.preset, paused.preset, paused.mode) == ("off", "balanced", "holding")
        assert server.stop() == 0


def test_a_guardrail_that_nothing_meets_switches_compaction_off_and_tries_again():
    flags = ["--kv_memory=16MiB", "--threads=1", "--policy=random", "--swap_every=2", "--guard",
             "--guard_hit_ratio_warning=0.99995", "--guard_hit_ratio_limit=0.9999",
             "--guard_evaluation_window=200ms", "--guard_holding_dwell=200ms", "--guard_uncompressed_dwell=8s",
             "--guard_probation_dwell=1h",
             # Of a small cache on a busy machine these say nothing.
             "--guard_memory_fluctuation_warning=1000", "--guard_memory_fluctuation_limit=2000",
             "--guard_merge_latency_warning=1h", "--guard_merge_latency_limit=2h"]

    def ask():
        request = inference_pb2.GenerateRequest()
        request.token_ids.ids.extend(5 + i * 7 % 250 for i in range(350))
        request.stopping.max_tokens = 120
        request.stopping.ignore_eos = True
        return stub.Generate(request, timeout=60).receipt

    def state():
        return admin.GetCompression(admin_pb2.GetCompressionRequest(), timeout=10).state

    def ask_until(mode, seconds):
        until = time.monotonic() + seconds
        while state().mode != mode:
            assert time.monotonic() < until, f"not {mode}, but {state()}"
            ask()

    with ServerProcess(TINY_MODEL, *flags) as server, server.channel() as channel:
        stub, admin = inference_pb2_grpc.InferenceStub(channel), admin_pb2_grpc.AdminStub(channel)
        assert state().mode == "compacting"
        ask_until("uncompressed", 90)
        assert "hit ratio" in state().mode_reason
        receipt = ask()
        assert (receipt.mode, receipt.ratio, receipt.swaps_accepted) == ("uncompressed", 1.0, 0)
        ask_until("probation", 60)
        transitions = {name: value for name, value in server.metrics().items()
                       if name.startswith("condense_guard_transitions_total{") and value > 0}
        for reason in ('reason="limit_broken",to="uncompressed"', 'reason="dwell_over",to="probation"'):
            assert [value for name, value in transitions.items() if reason in name] == [1], transitions
        changed = admin.SetCompression(admin_pb2.SetCompressionRequest(mode="holding"), timeout=10).state
        assert changed.mode == "holding"
        assert ask().mode == "holding"
        assert server.stop() == 0
        assert any("compaction: uncompressed, was" in line for line in server.log)


def test_two_clients_at_once(server):
    def client(texts, index):
        with server.channel() as channel:
            request = long_request()
            request.stopping.max_tokens = 32
            events = inference_pb2_grpc.InferenceStub(channel).GenerateStream(request, timeout=120)
            texts[index] = "".join(event.tokens.text for event in events)

    texts = [None, None]
    threads = [threading.Thread(target=client, args=(texts, index)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=150)
    assert texts[0] and texts[0] == texts[1]


def test_metrics_count_what_happened(server, channel):
    stub = inference_pb2_grpc.InferenceStub(channel)
    before = server.metrics()
    request = long_request()
    request.stopping.max_tokens = 8
    stub.Generate(request, timeout=60)
    after = server.metrics()

    def grown(name):
        found = [key for key in after if key.startswith(name)]
        assert found, name
        return sum(after[key] - before.get(key, 0) for key in found)

    assert grown("condense_generated_tokens_total") == 8
    assert grown("condense_requests_total") == 1


def test_the_flags_of_head_pools_reach_the_pools():
    def pools(server):
        metrics = server.metrics()
        [capacity] = [value for name, value in metrics.items() if name.startswith("condense_kv_pool_capacity_bytes{")]
        [growths] = [value for name, value in metrics.items() if name.startswith("condense_kv_pool_growths_total{")]
        return capacity, growths

    # 4 heads; a block of 32 tokens of one takes 4 KiB. Each may hold 256 KiB if all memory were in use.
    flags = ["--kv_memory=1MiB", "--compaction=false", "--preset=off", "--pool_preallocate=0.0625",
             "--pool_grow_at=0.5", "--pool_grow_by=0.5", "--pool_cap_bytes=64KiB"]
    with ServerProcess(TINY_MODEL, *flags) as server, server.channel() as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)

        def hold(tokens):
            request = inference_pb2.GenerateRequest()
            request.token_ids.ids.extend([5] * tokens)
            request.stopping.max_tokens = 1
            stub.Generate(request, timeout=60)
            wait_for(lambda: is_idle(channel))

        assert pools(server) == (4 * 16 * 1024, 0)
        hold(2 * 32)  # half of 16 KiB
        wait_for(lambda: pools(server) == (4 * 16 * 1024, 0))
        hold(3 * 32)
        wait_for(lambda: pools(server) == (4 * 24 * 1024, 4))
        hold(13 * 32)  # five steps of 8 KiB; twice 52 KiB is more than the cap
        wait_for(lambda: pools(server) == (4 * 64 * 1024, 24))
        assert server.stop() == 0


def test_no_text_of_a_request_is_logged(server, channel):
    marker = "xyzzyplugh"
    request = long_request(request_id="seen-in-log")
    request.text = marker
    request.stopping.stop.append(marker)
    request.stopping.max_tokens = 2
    stub = inference_pb2_grpc.InferenceStub(channel)
    stub.Generate(request, timeout=60)
    request.sampling.top_p = 7
    with pytest.raises(grpc.RpcError):
        stub.Generate(request, timeout=60)
    assert server.log
    assert marker not in "".join(server.log)


@needs_demo_model
def test_what_can_never_fit_is_not_asked_to_try_again():
    with ServerProcess(MODEL, "--kv_memory=12MiB") as server, server.channel() as channel:
        request = inference_pb2.GenerateRequest()
        request.token_ids.ids.extend([5] * 4000)
        with pytest.raises(grpc.RpcError) as error:
            inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=60)
        assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "can never fit" in error.value.details()
        assert "grpc-status-details-bin" not in dict(error.value.trailing_metadata())
        assert [value for name, value in server.metrics().items()
                if name.startswith("condense_rejections_total{") and 'reason="too_long"' in name] == [1]


@needs_demo_model
def test_sigterm_drains_under_load():
    with ServerProcess(MODEL, "--kv_memory=256MiB", "--drain_timeout=60s") as server:
        results = []

        def client():
            with server.channel() as channel:
                request = long_request()
                request.stopping.max_tokens = 60
                events = list(inference_pb2_grpc.InferenceStub(channel).GenerateStream(request, timeout=120))
                results.append(events[-1].finished.usage.completion_tokens)

        threads = [threading.Thread(target=client) for _ in range(4)]
        for thread in threads:
            thread.start()
        with server.channel() as channel:
            wait_for(lambda: load(channel).running == 4)
            server.send(signal.SIGTERM)
            health = health_pb2_grpc.HealthStub(channel)
            wait_for(lambda: health.Check(health_pb2.HealthCheckRequest(), timeout=10).status
                     == health_pb2.HealthCheckResponse.NOT_SERVING)
            with pytest.raises(grpc.RpcError) as error:
                inference_pb2_grpc.InferenceStub(channel).Generate(long_request(), timeout=10)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        trailer = dict(error.value.trailing_metadata())["grpc-status-details-bin"]
        retry = error_details_pb2.RetryInfo()
        assert status_pb2.Status.FromString(trailer).details[0].Unpack(retry)
        assert retry.retry_delay.seconds > 0
        assert server.wait(90) == 0
        for thread in threads:
            thread.join(timeout=30)
        assert results == [60] * 4


@needs_demo_model
def test_a_drain_ends_with_its_time():
    with ServerProcess(MODEL, "--kv_memory=256MiB", "--drain_timeout=200ms") as server, server.channel() as channel:
        call = inference_pb2_grpc.InferenceStub(channel).GenerateStream(long_request(), timeout=120)
        next(call)
        assert server.stop(30) == 0
        with pytest.raises(grpc.RpcError):
            list(call)


@needs_demo_model
def test_a_second_signal_ends_the_process_at_once():
    with ServerProcess(MODEL, "--kv_memory=256MiB", "--drain_timeout=300s") as server, server.channel() as channel:
        call = inference_pb2_grpc.InferenceStub(channel).GenerateStream(long_request(), timeout=120)
        next(call)
        server.send(signal.SIGINT)
        wait_for(lambda: any("draining" in line for line in server.log))
        server.send(signal.SIGINT)
        assert server.wait(5) == 128 + signal.SIGINT


def condensed(*flags):
    return subprocess.run([os.environ["CONDENSED"], *flags], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("flags, named", [
    (["--no_such_flag=1"], "no_such_flag"),
    (["--model=x", "--kv_memory=4GB"], "kv_memory"),
    (["--model=x", "--step_tokens=-1"], "step_tokens"),
    (["--model=x", "--log_level=loud"], "loud"),
    (["--model=x", "--preset=best"], "--preset is \"best\""),
    (["--model=x", "--policy=best"], "--policy is \"best\""),
    (["--model=x", "--ratio=17"], "--ratio is 17; must be in [1, 16]"),
    (["--model=x", "--preset=off", "--ratio=4"], "--ratio is 4"),
    (["--model=x", "--compaction=false"], "--preset is \"balanced\""),
    (["--model=x", "--soft_limit=0.2"], "soft_limit is 0.2; must be in 0.4..1"),
    (["--model=x", "--staging_memory=3GB"], "staging_memory"),
    (["--model=x", "--guard_evaluation_window=1ms"], "guard_evaluation_window is 1ms, must be at least 100ms"),
    (["--model=x", "--guard_hit_ratio_limit=0.96"], "guard_hit_ratio_warning is 0.92, must be above the limit 0.96"),
    (["--model=x", "--slo=drift<=1%", "--compaction=false", "--preset=off"], "nothing is guarded"),
    (["--model=x", "--guard", "--slo=drift>=1%"], 'slo term "drift>=1%": its sign is ">=", must be "<="'),
    (["--model=x", "--guard=false", "--slo=drift<=1%"], "nothing is guarded"),
    (["--model=x", "--guard", "--slo=drift<=1%", "--guard_drift_limit=0.03"],
     "--guard_drift_limit is 0.03 and --slo binds drift; one of them must be left out"),
    (["--model=x", "argument"], "argument"),
    ([], "--model"),
])
def test_a_wrong_command_line_exits_with_2(flags, named):
    result = condensed(*flags)
    assert result.returncode == 2
    assert named in result.stderr


def test_what_keeps_it_from_serving_is_one_line_and_exit_1(server, tmp_path):
    absent = condensed(f"--model={tmp_path}/absent.gguf")
    broken_file = tmp_path / "broken.gguf"
    broken_file.write_bytes(b"GGUF but not really")
    broken = condensed(f"--model={broken_file}")
    taken = condensed(f"--model={TINY_MODEL}", f"--listen={server.address}", "--kv_memory=16MiB")
    for result, named in [(absent, "absent.gguf"), (broken, "broken.gguf"), (taken, server.address)]:
        assert result.returncode == 1
        lines = [line for line in result.stderr.splitlines() if line.startswith("condensed: ")]
        assert len(lines) == 1 and named in lines[0]


def test_help_and_version_exit_with_0():
    assert "--kv_memory" in condensed("--help").stdout
    assert condensed("--help").returncode == 0
    version = condensed("--version")
    assert version.returncode == 0 and version.stdout.startswith("condensed ")


def test_flagfile(tmp_path):
    flagfile = tmp_path / "flags"
    flagfile.write_text("# comment\n--kv_memory=16MiB\n--model_name=from-flagfile\n")
    with ServerProcess(TINY_MODEL, f"--flagfile={flagfile}") as server, server.channel() as channel:
        info = info_pb2_grpc.InfoStub(channel)
        assert info.GetModelInfo(info_pb2.GetModelInfoRequest(), timeout=10).name == "from-flagfile"
        assert server.stop() == 0
