"""Load with everything that clients do to a server: cancels, deadlines, slow readers, processes killed in mid-stream.

Afterwards nothing may be left: no request, no byte of the arena, no descriptor, no growth of the process once warm, and
every accepted request was counted once as finished, cancelled, expired or failed. Then the load begins again and the
server is told to end in the middle of it: it finishes what it accepted and exits. Exit status 1 and a reason otherwise.
The long run: soak.py --seconds 600
"""

import argparse
import asyncio
import collections
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import grpc

from condense.v1 import inference_pb2, inference_pb2_grpc, info_pb2, info_pb2_grpc
from server_process import TINY_MODEL, ServerProcess

STREAMS_PER_CLIENT = 12
# gRPC keeps a few for its threads once they exist.
SPARE_DESCRIPTORS = 16


def random_request(rng):
    request = inference_pb2.GenerateRequest(text="word " * rng.choice([1, 4, 16, 48]))
    request.tenant = rng.choice(["", "red", "blue"])
    request.priority = rng.choice([0, 0, 0, 5])
    request.sampling.temperature = rng.choice([0, 0.7, 1.3])
    request.sampling.top_p = rng.choice([1.0, 0.9])
    request.stopping.max_tokens = rng.choice([1, 8, 40, 120])
    request.stopping.ignore_eos = rng.random() < 0.5
    if rng.random() < 0.5:
        request.compression.preset = rng.choice(["off", "lossless", "light", "balanced", "aggressive"])
    if rng.random() < 0.2:
        request.output.logprobs = 5
    if rng.random() < 0.2:
        request.stopping.stop.append("e")
    return request


class Lost(Exception):
    """The server went away from a request that it had accepted."""


async def one_call(stub, rng, count):
    behaviour = rng.choice(["plain", "plain", "cancel", "deadline", "slow", "bad", "unary"])
    request = random_request(rng)
    timeout = rng.uniform(0.001, 0.5) if behaviour == "deadline" else 120
    if behaviour == "bad":
        request.sampling.top_p = -1
    if behaviour == "unary":
        await stub.Generate(request, timeout=timeout)
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


async def one_stream(stub, rng, until, count):
    while time.monotonic() < until:
        try:
            await one_call(stub, rng, count)
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


async def client(address, seconds, streams, seed):
    """One client process. Says each accepted request at once: it may be killed at any time."""
    counts = collections.Counter()

    def count(what):
        counts[what] += 1
        if what == "accepted":
            os.write(1, b"accepted\n")

    rng = random.Random(seed)
    until = time.monotonic() + seconds
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        await asyncio.gather(*(one_stream(stub, random.Random(rng.random()), until, count) for _ in range(streams)))
    os.write(1, (json.dumps(counts) + "\n").encode())


class Clients:
    """The client processes of one soak; some are killed and replaced."""

    def __init__(self, address, streams, until, seed, folder):
        self._address, self._until, self._folder = address, until, folder
        self._rng = random.Random(seed)
        self._sizes = [min(STREAMS_PER_CLIENT, streams - first) for first in range(0, streams, STREAMS_PER_CLIENT)]
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
                 str(self._sizes[index]), "--seed", str(self._rng.randrange(1 << 30))], stdout=output)

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
        accepted = 0
        for path in self._outputs:
            with open(path) as output:
                for line in output:
                    if line == "accepted\n":
                        accepted += 1
                    elif line.startswith("{"):
                        counts.update(json.loads(line))
        counts["accepted"] = accepted
        return counts


def require(condition, what):
    if not condition:
        raise SystemExit(f"soak: FAILED: {what}")


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
            return now.running == now.queued == now.queued_tokens == now.kv_bytes_used == now.logical_tokens == 0

        wait_until(is_idle, seconds, lambda: f"requests or memory are left over: {load()}".replace("\n", " "))


def check_counters(metrics, seen, lost_streams):
    outcomes = {name.split('outcome="')[1].split('"')[0]: value for name, value in metrics.items()
                if name.startswith("condense_requests_total{")}
    rejected = outcomes.pop("rejected", 0)
    ended = sum(outcomes.values())
    rejections = sum(value for name, value in metrics.items() if name.startswith("condense_rejections_total"))
    measured = sum(value for name, value in metrics.items() if name.startswith("condense_request_seconds_count"))
    print(f"soak: outcomes {outcomes}, rejected {rejected:.0f}")
    require(rejected == rejections, f"{rejected} requests were rejected, for {rejections} reasons")
    require(ended == measured, f"{ended} requests ended, {measured} were measured")
    accepted = sum(value for name, value in metrics.items() if name.startswith("condense_requests_accepted_total"))
    require(accepted == ended, f"{accepted} requests were accepted, {ended} ended")
    # A client that left or was killed may not have seen that its request was accepted.
    unseen = seen["unknown"] + seen["DEADLINE_EXCEEDED"] + lost_streams
    require(seen["accepted"] <= ended <= seen["accepted"] + unseen,
            f"{ended} requests ended; clients saw {seen['accepted']} accepted, and {unseen} may be unseen")
    require(outcomes.get("stop", 0) + outcomes.get("length", 0) >= seen["finished"],
            f"clients saw {seen['finished']} requests finish, the server {outcomes}")
    for state in ("running", "queued"):
        gauges = [value for name, value in metrics.items() if name.startswith(f"condense_requests_{state}")]
        require(gauges and sum(gauges) == 0, f"condense_requests_{state} is {gauges}")
    return ended


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


def check_memory(samples, options):
    half = len(samples) // 2
    warm, last = statistics.median(samples[:half]), statistics.median(samples[half:])
    change = last / warm - 1
    print(f"soak: resident {warm / 2**20:.1f} MiB when warm, {last / 2**20:.1f} MiB in the last quarter "
          f"({change:+.1%})")
    require(abs(change) <= options.growth, f"resident memory changed by {change:+.1%}; at most {options.growth:.1%}")


def load_until_the_end(server, options, folder):
    """All that the load may do to the server, then proof that nothing of it is left."""
    descriptors = server.open_descriptors()
    until = time.monotonic() + options.seconds
    clients = Clients(server.address, options.streams, until, options.seed, folder)
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
    ended = check_counters(server.metrics(), seen, clients.lost_streams)
    check_memory(samples, options)
    wait_until(lambda: server.open_descriptors() <= descriptors + SPARE_DESCRIPTORS, 30,
               lambda: f"{server.open_descriptors()} descriptors are open; {descriptors} were before the load")
    return ended


def drain_under_load(server, options, folder):
    """SIGTERM in the middle of the load: what was accepted is finished, the rest is refused, the process ends."""
    clients = Clients(server.address, options.streams, time.monotonic() + 300, options.seed + 1, folder)
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
    parser.add_argument("--growth", type=float, default=0.02,
                        help="largest change of resident memory from the third quarter of the time to the last")
    parser.add_argument("--kill_every", type=float, default=3, help="seconds between killed client processes")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        asyncio.run(client(options.client, options.seconds, options.streams, options.seed))
        return
    if not options.flag:
        # Small enough that requests are set back and a slow reader's buffer runs full.
        options.flag = ["--kv_memory=2MiB", "--max_sequences=32", "--max_queued_requests=64",
                        "--stream_buffer_tokens=256", "--step_tokens=256"]
    with tempfile.TemporaryDirectory() as folder:
        soak(options, folder)


if __name__ == "__main__":
    main()
