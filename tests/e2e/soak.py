"""Load with everything that clients do to a server: cancels, deadlines, slow readers, processes killed in mid-stream.

Afterwards nothing may be left: no request, no byte of the arena, used or staged, no compaction job, no descriptor, no
growth of the process once warm; every accepted request was counted once as finished, cancelled, expired or failed, and
every unit whose compaction came back once under its outcome. Then the load begins again and the server is told to end
in the middle of it: it finishes what it accepted and exits. Exit status 1 and a reason otherwise.
The long run: soak.py --seconds 600
Compaction of all kinds, for which requests must live longer than clients between kills, and memory comes and goes:
soak.py --model FILE --compression --long_prompts 0.3 --kill_every 12 --growth 0.3 --flag=--kv_memory=96MiB
"""

import argparse
import asyncio
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

import grpc

from condense.v1 import inference_pb2, inference_pb2_grpc, info_pb2, info_pb2_grpc
from server_process import TINY_MODEL, ServerProcess
from soak_checks import check_compaction, check_counters, check_memory, check_receipt, held_by_the_cache, require

STREAMS_PER_CLIENT = 12
# gRPC keeps a few for its threads once they exist.
SPARE_DESCRIPTORS = 16
LONGEST_PROMPT = 2000  # tokens
# Every vocabulary has more; the first few are special.
SOME_TOKEN_IDS = range(3, 250)
PRESETS = ["off", "lossless", "light", "balanced", "aggressive"]
POLICIES = ["none", "balanced", "similarity", "similarity_average", "attention", "lru", "window", "random"]
RATIOS = (1.0, 16.0)


def choose_compression(rng, compression, every_request):
    if not every_request:
        if rng.random() < 0.5:
            compression.preset = rng.choice(PRESETS)
    elif rng.random() < 0.5:
        compression.preset = rng.choice(PRESETS)
    else:
        compression.policy = rng.choice(POLICIES)
        compression.ratio = rng.uniform(*RATIOS)


def random_request(rng, options):
    request = inference_pb2.GenerateRequest()
    if rng.random() < options.long_prompts:
        tokens = rng.randint(100, LONGEST_PROMPT)
        request.token_ids.ids.extend(rng.choice(SOME_TOKEN_IDS) for _ in range(tokens))
    else:
        request.text = "word " * rng.choice([1, 4, 16, 48])
    request.tenant = rng.choice(["", "red", "blue"])
    request.priority = rng.choice([0, 0, 0, 5])
    request.sampling.temperature = rng.choice([0, 0.7, 1.3])
    request.sampling.top_p = rng.choice([1.0, 0.9])
    request.stopping.max_tokens = rng.choice([1, 8, 40, 120])
    request.stopping.ignore_eos = rng.random() < 0.5
    choose_compression(rng, request.compression, options.compression)
    if rng.random() < 0.2:
        request.output.logprobs = 5
    if rng.random() < 0.2:
        request.stopping.stop.append("e")
    return request


class Lost(Exception):
    """The server went away from a request that it had accepted."""


async def one_call(stub, rng, options, count):
    behaviour = rng.choice(["plain", "plain", "cancel", "deadline", "slow", "bad", "unary"])
    request = random_request(rng, options)
    timeout = rng.uniform(0.001, 0.5) if behaviour == "deadline" else 120
    if behaviour == "bad":
        request.sampling.top_p = -1
        count("bad")
    if behaviour == "unary":
        response = await stub.Generate(request, timeout=timeout)
        check_receipt(request, response.receipt, count)
        count("accepted")
        return count("finished")
    leave_after = rng.randrange(6) if behaviour == "cancel" else None
    call = stub.GenerateStream(request, timeout=timeout)
    if leave_after == 0:
        call.cancel()
        return count("unknown")
    events = 0
    try:
        async for event in call:
            kind = event.WhichOneof("event")
            if kind in ("accepted", "finished"):
                count(kind)
            if kind == "finished":
                check_receipt(request, event.finished.receipt, count)
            events += 1
            if leave_after is not None and events >= leave_after and kind != "finished":
                call.cancel()
                return count("left")
            if behaviour == "slow":
                await asyncio.sleep(rng.uniform(0, 0.1))
    except grpc.aio.AioRpcError as error:
        if events > 0 and error.code() == grpc.StatusCode.UNAVAILABLE:
            raise Lost from error
        raise


async def one_stream(stub, rng, options, until, count):
    while time.monotonic() < until:
        try:
            await one_call(stub, rng, options, count)
        except Lost:
            return count("lost")
        except grpc.aio.AioRpcError as error:
            count(error.code().name)
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                return
            if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
                await asyncio.sleep(0.1)
            elif error.code() == grpc.StatusCode.INTERNAL:
                print(error.details(), file=sys.stderr)


async def client(options):
    """One client process. Says what it sees at once: it may be killed at any time."""
    def count(what, by=1):
        os.write(1, (json.dumps({what: by}) + "\n").encode())

    rng = random.Random(options.seed)
    until = time.monotonic() + options.seconds
    async with grpc.aio.insecure_channel(options.client) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        await asyncio.gather(*(one_stream(stub, random.Random(rng.random()), options, until, count)
                               for _ in range(options.streams)))


class Clients:
    """The client processes of one soak; some are killed and replaced."""

    def __init__(self, address, options, until, seed, folder):
        self._address, self._until, self._folder = address, until, folder
        self._rng = random.Random(seed)
        self._kind = ["--long_prompts", str(options.long_prompts)] + ["--compression"] * options.compression
        self._sizes = [min(STREAMS_PER_CLIENT, options.streams - first)
                       for first in range(0, options.streams, STREAMS_PER_CLIENT)]
        self._running = {}
        self._outputs = []
        self.lost_streams = 0
        self.kills = 0
        for index in range(len(self._sizes)):
            self._start(index)

    def _start(self, index):
        seconds = self._until - time.monotonic()
        path = os.path.join(self._folder, f"client-{len(self._outputs)}")
        self._outputs.append(path)
        with open(path, "w") as output:
            self._running[index] = subprocess.Popen(
                [sys.executable, __file__, "--client", self._address, "--seconds", str(seconds), "--streams",
                 str(self._sizes[index]), "--seed", str(self._rng.randrange(1 << 30)), *self._kind], stdout=output)

    def kill_one(self):
        index = self._rng.choice(list(self._running))
        process = self._running[index]
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            self.kills += 1
            self.lost_streams += self._sizes[index]
        process.wait()
        self._start(index)

    def finish(self, seconds):
        until = time.monotonic() + seconds
        for process in self._running.values():
            process.wait(timeout=max(1, until - time.monotonic()))

    def end(self):
        for process in self._running.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def totals(self):
        counts = collections.Counter()
        for path in self._outputs:
            with open(path) as output:
                for line in output:
                    counts.update(json.loads(line))
        return counts


def wait_until(condition, seconds, what):
    until = time.monotonic() + seconds
    while not condition():
        require(time.monotonic() < until, what())
        time.sleep(0.1)


def wait_until_idle(address, seconds):
    with grpc.insecure_channel(address) as channel:
        info = info_pb2_grpc.InfoStub(channel)

        def load():
            return info.GetLoad(info_pb2.GetLoadRequest(), timeout=10)

        def is_idle():
            now = load()
            return not any([now.running, now.queued, now.queued_tokens, now.kv_bytes_used, now.kv_bytes_staging,
                            now.kv_bytes_slack, now.logical_tokens, now.compaction_jobs_out])

        wait_until(is_idle, seconds, lambda: f"requests or memory are left over: {load()}".replace("\n", " "))


def watch(server, clients, until, options):
    """Kills a client process now and then until the time is over. The server's resident bytes in its last half."""
    begin = time.monotonic()
    next_kill = begin + options.kill_every
    samples = []
    while time.monotonic() < until:
        time.sleep(0.25)
        now = time.monotonic()
        if now - begin > (until - begin) / 2:
            samples.append(server.resident_bytes())
        if now > next_kill and now < until - 2:
            clients.kill_one()
            next_kill = now + options.kill_every
    return samples


def load_until_the_end(server, options, folder):
    """All that the load may do to the server, then proof that nothing of it is left."""
    descriptors = server.open_descriptors()
    until = time.monotonic() + options.seconds
    clients = Clients(server.address, options, until, options.seed, folder)
    try:
        samples = watch(server, clients, until, options)
        clients.finish(180)
    finally:
        clients.end()
    wait_until_idle(server.address, 60)
    seen = clients.totals()
    print(f"soak: clients saw {dict(seen)}, {clients.kills} client processes were killed")
    require(seen["INTERNAL"] == 0, "a client saw INTERNAL")
    require(seen["lost"] + seen["UNAVAILABLE"] == 0, "the server was unavailable")
    require(seen["finished"] > 0, "no request was finished")
    require(seen["bad"] - clients.lost_streams <= seen["INVALID_ARGUMENT"] <= seen["bad"],
            f"{seen['bad']} requests were bad, {seen['INVALID_ARGUMENT']} were refused as such")
    wait_until(lambda: not any(held_by_the_cache(server.metrics()).values()), 10,
               lambda: f"the cache holds {held_by_the_cache(server.metrics())}")
    metrics = server.metrics()
    ended = check_counters(metrics, seen, clients.lost_streams)
    check_compaction(server, metrics, seen, options)
    check_memory(samples, options)
    wait_until(lambda: server.open_descriptors() <= descriptors + SPARE_DESCRIPTORS, 30,
               lambda: f"{server.open_descriptors()} descriptors are open; {descriptors} were before the load")
    return ended


def drain_under_load(server, options, folder):
    """SIGTERM in the middle of the load: what was accepted is finished, the rest is refused, the process ends."""
    clients = Clients(server.address, options, time.monotonic() + 300, options.seed + 1, folder)
    try:
        with grpc.insecure_channel(server.address) as channel:
            info = info_pb2_grpc.InfoStub(channel)
            wait_until(lambda: info.GetLoad(info_pb2.GetLoadRequest(), timeout=10).running > 0, 60,
                       lambda: "the load did not begin again")
        time.sleep(1)
        status = server.stop(120)
        log = "".join(server.log[-40:])
        require(status == 0, f"the server's exit status is {status}: {log}")
        require("cut off" not in log, f"the drain did not end: {log}")
        clients.finish(120)
    finally:
        clients.end()
    seen = clients.totals()
    print(f"soak: in the drain clients saw {dict(seen)}")
    require(seen["lost"] == 0, f"{seen['lost']} accepted requests were not finished")
    require(seen["INTERNAL"] == 0, "a client saw INTERNAL in the drain")
    require(seen["UNAVAILABLE"] > 0, "no client was refused: the drain was not under load")


def soak(options, folder):
    flags = [*options.flag, "--drain_timeout=60s"]
    with ServerProcess(options.model, *flags, start_seconds=300) as server:
        folders = [os.path.join(folder, name) for name in ("load", "drain")]
        for name in folders:
            os.mkdir(name)
        ended = load_until_the_end(server, options, folders[0])
        drain_under_load(server, options, folders[1])
        print(f"soak: ok: {ended:.0f} requests in {options.seconds:.0f} s of {options.streams} streams")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200, help="concurrent calls")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default=TINY_MODEL)
    parser.add_argument("--flag", action="append", default=[], help="a flag of the server, repeated")
    parser.add_argument("--compression", action="store_true",
                        help="each request asks for a preset, or for a policy and a ratio")
    parser.add_argument("--long_prompts", type=float, default=0,
                        help=f"share of the requests with prompts of up to {LONGEST_PROMPT} tokens")
    parser.add_argument("--growth", type=float, default=0.02,
                        help="largest change of resident memory from the third quarter of the time to the last")
    parser.add_argument("--kill_every", type=float, default=3, help="seconds between killed client processes")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        asyncio.run(client(options))
        return
    if not options.flag:
        # Small enough that requests are set back and a slow reader's buffer runs full.
        options.flag = ["--kv_memory=2MiB", "--max_sequences=32", "--max_queued_requests=64",
                        "--stream_buffer_tokens=256", "--step_tokens=256"]
    with tempfile.TemporaryDirectory() as folder:
        soak(options, folder)


if __name__ == "__main__":
    main()
