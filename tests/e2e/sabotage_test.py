"""Compaction that is made to do harm, seen from outside: the server notices, falls back, and comes back by itself."""

import random
import threading
import time

from condense.v1 import admin_pb2, admin_pb2_grpc, common_pb2, inference_pb2, inference_pb2_grpc
from server_process import DEMO_MODEL, TINY_MODEL, ServerProcess

# What depends on the time that a busy machine takes is not what these tests are about.
UNTIMED = ["--guard_merge_latency_warning=1h", "--guard_merge_latency_limit=2h", "--guard_first_token_warning=100",
           "--guard_first_token_limit=200", "--guard_memory_fluctuation_warning=1000",
           "--guard_memory_fluctuation_limit=2000"]
# So that only drift or canary can speak.
NO_HIT_RATIO = ["--guard_hit_ratio_warning=0.02", "--guard_hit_ratio_limit=0.01",
                "--guard_hit_ratio_tail_warning=0.02", "--guard_hit_ratio_tail_limit=0.01"]
# With as much time as probes may have: these servers are hardly ever idle.
ALL_PROBED = ["--probe_share=1", "--probe_step_share=0.5"]
QUICK = ["--guard", "--guard_evaluation_window=200ms", "--guard_holding_dwell=500ms", "--guard_uncompressed_dwell=3s",
         "--guard_probation_dwell=1s"]
# Some 900 tokens.
PROSE = "".join(f"In the {season} the {who} went down to the {where} and talked about the {what}. "
                for season in ("spring", "summer", "autumn", "winter")
                for who in ("miller", "teacher", "sailor", "judge")
                for where, what in (("harbour", "weather"), ("market", "price of bread"), ("chapel", "old bell")))


class Guarded(ServerProcess):
    """A server with its stubs and what the tests ask it."""

    def __init__(self, *args):
        super().__init__(*args)
        self.connection = self.channel()
        self.inference = inference_pb2_grpc.InferenceStub(self.connection)
        self.admin = admin_pb2_grpc.AdminStub(self.connection)
        self.random = random.Random(7)

    def ask(self, tokens, generated, preset=None):
        request = inference_pb2.GenerateRequest()
        request.token_ids.ids.extend(self.random.randrange(5, 250) for _ in range(tokens))
        request.stopping.max_tokens = generated
        request.stopping.ignore_eos = True
        request.sampling.temperature = 1
        if preset:
            request.compression.preset = preset
        return self.inference.Generate(request, timeout=120).receipt

    def ask_text(self, text, generated):
        request = inference_pb2.GenerateRequest(text=text)
        request.stopping.max_tokens = generated
        request.stopping.ignore_eos = True
        request.sampling.temperature = 1
        request.sampling.seed = 1
        return self.inference.Generate(request, timeout=240).receipt

    def state(self):
        return self.admin.GetCompression(admin_pb2.GetCompressionRequest(), timeout=10).state

    def wait_for(self, mode, seconds, meanwhile=lambda: time.sleep(0.2)):
        until = time.monotonic() + seconds
        while self.state().mode != mode:
            assert time.monotonic() < until, f"not {mode} after {seconds} s: {self.state()}\n{self.quality()}"
            meanwhile()

    def value(self, start):
        """Of the metric whose name and first labels, without the model's, begin so."""
        found = [value for name, value in self.metrics().items() if without_model(name).startswith(start)]
        assert len(found) == 1, start
        return found[0]

    def quality(self):
        return {name: value for name, value in self.metrics().items()
                if any(part in name for part in ("guard_", "probes_total", "canary_")) and value}

    def transitions(self):
        return sum(value for name, value in self.metrics().items()
                   if name.startswith("condense_guard_transitions_total{"))

    def __exit__(self, *unused):
        self.connection.close()
        super().__exit__(*unused)


def without_model(name):
    parts = name.rstrip("}").split("{")
    labels = [label for label in parts[1].split(",") if not label.startswith("model=")] if len(parts) > 1 else []
    return parts[0] + "{" + ",".join(sorted(labels)) + "}"


def test_a_policy_that_drops_what_matters_is_switched_off_by_its_drift_and_its_successor_comes_back():
    flags = ["--kv_memory=64MiB", "--threads=1", "--policy=random", "--ratio=8", "--swap_every=2", *ALL_PROBED,
             "--canary_interval=0", "--guard_drift_warning=0.004", "--guard_drift_limit=0.008"]
    with Guarded(TINY_MODEL, *flags, *QUICK, *UNTIMED, *NO_HIT_RATIO) as server:
        assert server.ask(350, 60).swaps_accepted > 0
        server.wait_for("uncompressed", 120, lambda: server.ask(350, 60))
        assert "drift" in server.state().mode_reason
        assert server.value('condense_guard_reading{guard="drift"') > 0.008
        assert server.value('condense_guard_samples{guard="drift"') >= 8
        assert server.value('condense_guard_mode{mode="uncompressed"') == 1
        receipt = server.ask(350, 60)
        assert (receipt.mode, receipt.ratio, receipt.swaps_accepted) == ("uncompressed", 1.0, 0)

        # The harm goes on: probation notices, too.
        server.wait_for("probation", 60, lambda: server.ask(350, 60))
        server.wait_for("uncompressed", 120, lambda: server.ask(350, 60))
        # An operator puts a harmless preset in its place: after the dwell it is tried, found good, and kept.
        harmless = admin_pb2.SetCompressionRequest(compression=common_pb2.Compression(preset="lossless"))
        server.admin.SetCompression(harmless, timeout=10)
        server.wait_for("compacting", 240, lambda: server.ask(350, 60))
        assert server.ask(350, 60).mode == "compacting"
        assert server.value('condense_guard_transitions_total{reason="probation_passed",to="compacting"') == 1
        changes = server.transitions()
        assert server.stop() == 0
        assert sum("compaction: " in line and ", was " in line for line in server.log) == changes


def test_what_runs_when_quality_breaks_is_computed_anew_and_its_stream_goes_on():
    flags = ["--kv_memory=256MiB", "--policy=random", "--ratio=8", "--probe_share=0", "--canary_interval=0",
             "--guard_hit_ratio_warning=0.99995", "--guard_hit_ratio_limit=0.9999",
             "--guard_hit_ratio_tail_warning=0.02", "--guard_hit_ratio_tail_limit=0.01"]
    with Guarded(DEMO_MODEL, *flags, *QUICK, *UNTIMED) as server:
        receipts = []
        threads = [threading.Thread(target=lambda: receipts.append(server.ask_text(PROSE, 500))) for _ in range(2)]
        for thread in threads:
            thread.start()
        server.wait_for("uncompressed", 120)
        for thread in threads:
            thread.join(240)
        rebuilds = server.value("condense_rebuilds_total{")
        assert rebuilds >= 1
        assert sum(receipt.ratio == 1.0 for receipt in receipts) == rebuilds
        # The first token is the prompt's, of the last one nothing is computed.
        assert len({receipt.logical_tokens for receipt in receipts}) == 1
        assert server.value("condense_generated_tokens_total{") == 1000
        assert server.value("condense_preemptions_total{") == 0
        assert server.stop() == 0
        assert sum("is computed anew, uncompressed" in line for line in server.log) == rebuilds


def test_noise_alone_changes_nothing_in_a_thousand_windows():
    # Half of the requests show the noise floor, half what is nearly nothing.
    flags = ["--kv_memory=64MiB", "--threads=1", "--preset=lossless", "--swap_every=2", *ALL_PROBED,
             "--canary_interval=0", "--guard", "--guard_evaluation_window=100ms"]
    with Guarded(TINY_MODEL, *flags, *UNTIMED) as server:
        until = time.monotonic() + 101
        while time.monotonic() < until:
            server.ask(300, 40, preset="off")
            server.ask(300, 40)
            time.sleep(0.02)
        assert server.value('condense_probes_total{kind="floor",outcome="done"') >= 1
        assert server.value('condense_probes_total{kind="drift",outcome="done"') >= 200
        assert server.value("condense_drift_floor_ratio{") < 1e-5
        assert server.value('condense_guard_samples{guard="drift"') >= 200
        assert server.transitions() == 0, server.quality()
        assert server.state().mode == "compacting"
        assert server.stop() == 0


def test_the_canary_sees_the_loss_of_facts_that_drift_does_not():
    # About half of the entries go, the least attended ones: the text flows on, and what nobody has asked for is gone.
    flags = ["--policy=attention", "--ratio=1.9", "--mark_at=0", "--soft_limit=0", "--hard_limit=0",
             "--drop_share=0.02", *ALL_PROBED, "--canary_interval=100ms", "--canary_tokens=768",
             "--kv_memory=256MiB"]
    with Guarded(DEMO_MODEL, *flags, *QUICK, *UNTIMED) as server:
        receipt = server.ask_text(PROSE, 120)
        assert receipt.swaps_accepted > 0
        # Without any traffic there are no canaries.
        server.wait_for("uncompressed", 240, lambda: server.ask_text("Once upon a time", 4))
        assert "canary" in server.state().mode_reason
        assert server.value('condense_guard_reading{guard="canary"') < 0.9
        # The same cache as drift, hit ratio and their limits see it.
        assert server.value('condense_guard_reading{guard="drift"') < 0.01
        assert server.value('condense_guard_reading{guard="hit_ratio"') > 0.95
        assert server.ask_text(PROSE, 8).mode == "uncompressed"
        assert server.stop() == 0
