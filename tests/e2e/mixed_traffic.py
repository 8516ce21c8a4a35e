"""Ordinary traffic on a guarded server: prompts of 200 to 6,000 tokens of real text, several streams at once.

Prints what the guardrails read. Exit status 1 if the mode ever changed, if a guardrail passed its limit, or if a
request failed. Run by hand:

    tests/e2e/run build/release tests/e2e/mixed_traffic.py --text FILE... [--seconds 600] [--streams 8] [--flag=--...]
"""

import argparse
import random
import sys
import threading
import time

import grpc
from condense.v1 import inference_pb2, inference_pb2_grpc
from server_process import DEMO_MODEL, ServerProcess

CHARACTERS_PER_TOKEN = 4.2
# Broken by values above it, or else below it.
CEILINGS = {"merge_latency": 0.002, "memory_fluctuation": 0.10, "drift": 0.02, "first_token": 0.15, "memory": 1.0}
FLOORS = {"hit_ratio": 0.85, "hit_ratio_tail": 0.70, "canary": 0.90}
# Fewer are no reading.
LEAST_SAMPLES = {"drift": 8, "canary": 5}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", action="append", required=True, help="a file of plain text; may be repeated")
    parser.add_argument("--model", default=DEMO_MODEL)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flag", action="append", default=[], help="of the server; may be repeated")
    return parser.parse_args()


class Traffic:
    def __init__(self, texts, seed):
        self.texts, self.random, self.lock = texts, random.Random(seed), threading.Lock()
        self.requests, self.tokens, self.failures = 0, 0, []

    def draw(self):
        with self.lock:
            text = self.random.choice(self.texts)
            # Evenly over the logarithm: as many below 1,100 tokens as above.
            tokens = int(200 * 30 ** self.random.random())
            length = min(len(text) // 2, int(tokens * CHARACTERS_PER_TOKEN))
            start = self.random.randrange(len(text) - length)
            return text[start:start + length], self.random.randrange(50, 300)

    def stream(self, server, until):
        with server.channel() as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            while time.monotonic() < until:
                text, generated = self.draw()
                request = inference_pb2.GenerateRequest(text=text)
                request.stopping.max_tokens = generated
                request.stopping.ignore_eos = True
                request.sampling.temperature = 1
                try:
                    response = stub.Generate(request, timeout=600)
                except grpc.RpcError as error:
                    with self.lock:
                        self.failures.append(f"{error.code().name}: {error.details()}")
                    return
                with self.lock:
                    self.requests += 1
                    self.tokens += response.usage.completion_tokens


def read(server):
    """Guard -> (value, samples), of those that have any."""
    metrics = server.metrics()

    def labelled(name):
        return {key.split('guard="')[1].split('"')[0]: value for key, value in metrics.items()
                if key.startswith(name + "{")}

    samples = labelled("condense_guard_samples")
    readings = {guard: (value, int(samples[guard])) for guard, value in labelled("condense_guard_reading").items()
                if samples[guard] > 0}
    return readings, metrics


def total(metrics, start):
    return sum(value for name, value in metrics.items() if name.startswith(start))


def main():
    options = parse()
    texts = [open(path, encoding="utf-8", errors="ignore").read() for path in options.text]
    traffic = Traffic(texts, options.seed)
    broken = []
    worst = {}
    with ServerProcess(options.model, "--guard", *options.flag) as server:
        begin = time.monotonic()
        threads = [threading.Thread(target=traffic.stream, args=(server, begin + options.seconds))
                   for _ in range(options.streams)]
        for thread in threads:
            thread.start()
        while time.monotonic() < begin + options.seconds:
            time.sleep(10)
            readings, metrics = read(server)
            for guard, (value, _) in readings.items():
                pick = max if guard in CEILINGS else min
                worst[guard] = pick(value, worst.get(guard, value))
            shown = " ".join(f"{guard}={value:.4g}/{samples}" for guard, (value, samples) in readings.items())
            print(f"{time.monotonic() - begin:5.0f} s, {traffic.requests} requests: {shown}", file=sys.stderr)
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - begin
        readings, metrics = read(server)
        server.stop()
        log = [line for line in server.log if "compaction: " in line]
    print(f"{traffic.requests} requests, {traffic.tokens / seconds:.1f} tokens/s generated in {seconds:.0f} s")
    print(f"{'guardrail':20} {'last':>9} {'worst':>9} {'samples':>8}")
    for guard in [*FLOORS, *CEILINGS]:
        value, samples = readings.get(guard, (float("nan"), 0))
        print(f"{guard:20} {value:9.4f} {worst.get(guard, float('nan')):9.4f} {samples:8}")
        if samples < LEAST_SAMPLES.get(guard, 1):
            continue
        beyond = value > CEILINGS[guard] if guard in CEILINGS else value < FLOORS[guard]
        if beyond:
            broken.append(f"{guard} is {value:.4f}")
    kl = total(metrics, 'condense_quality_kl_nats_sum')
    for name in ("probes_total", "canary_facts", "quality_", "probe_seconds", "probe_tokens", "drift_floor"):
        for key, value in sorted(metrics.items()):
            if key.startswith("condense_" + name) and "_bucket" not in key and value:
                print(f"{key.replace('model=' + chr(34) + server.model + chr(34) + ',', '')} {value:g}")
    print(f"sum of drift {kl:g} nats")
    transitions = total(metrics, "condense_guard_transitions_total{")
    if transitions:
        broken.append(f"the mode changed {transitions:g} times:\n" + "".join(log))
    broken += traffic.failures
    for problem in broken:
        print("BROKEN: " + problem)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
