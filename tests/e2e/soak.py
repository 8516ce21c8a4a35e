"""Load with everything that clients do to a server: cancels, deadlines, slow readers, processes killed in mid-stream.

Afterwards nothing may be left: no request, no byte of the arena, no growth of the process, and every accepted request
was counted once as finished, cancelled, expired or failed. Exit status 1 and a reason otherwise.
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

STREAMS_PER_CLIENT = 12


def random_request(rng):
    request = inference_pb2.GenerateRequest(text="word " * rng.choice([1, 4, 16, 48]))
    request.tenant = rng.choice(["", "red", "blue"])
    request.priority = rng.choice([0, 0, 0, 5])
    request.sampling.temperature = rng.choice([0, 0.7, 1.3])
    request.sampling.top_p = rng.choice([1.0, 0.9])
    request.stopping.max_tokens = rng.choice([1, 8, 40, 120])
    request.stopping.ignore_eos = rng.random() < 0.5
    if rng.random() < 0.2:
        request.output.logprobs = 5
    if rng.random() < 0.2:
        request.stopping.stop.append("e")
    return request


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


async def one_stream(stub, rng, until, count):
    while time.monotonic() < until:
        try:
            await one_call(stub, rng, count)
        except grpc.aio.AioRpcError as error:
            count(error.code().name)
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


def wait_until_idle(address, seconds):
    until = time.monotonic() + seconds
    with grpc.insecure_channel(address) as channel:
        info = info_pb2_grpc.InfoStub(channel)
        while True:
            load = info.GetLoad(info_pb2.GetLoadRequest(), timeout=10)
            if load.running == load.queued == load.queued_tokens == load.kv_bytes_used == load.logical_tokens == 0:
                return
            require(time.monotonic() < until, f"requests or memory are left over: {load}".replace("\n", " "))
            time.sleep(0.1)


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


def soak(options, folder):
    flags = [*options.flag, "--drain_timeout=60s"]
    with ServerProcess(options.model, *flags, start_seconds=300) as server:
        begin = time.monotonic()
        until = begin + options.seconds
        clients = Clients(server.address, options.streams, until, options.seed, folder)
        try:
            warm = None
            while time.monotonic() < until - 2:
                time.sleep(min(options.kill_every, max(0.1, until - 2 - time.monotonic())))
                if warm is None and time.monotonic() - begin > options.seconds * 0.4:
                    warm = server.resident_bytes()
                if time.monotonic() < until - 2:
                    clients.kill_one()
            clients.finish(180)
        finally:
            clients.end()
        wait_until_idle(server.address, 60)
        seen = clients.totals()
        print(f"soak: clients saw {dict(seen)}, {clients.kills} client processes were killed")
        require(seen["INTERNAL"] == 0, "a client saw INTERNAL")
        require(seen["finished"] > 0, "no request was finished")
        ended = check_counters(server.metrics(), seen, clients.lost_streams)
        last = server.resident_bytes()
        growth = last / (warm or last) - 1
        print(f"soak: resident {(warm or last) / 2**20:.0f} MiB when warm, {last / 2**20:.0f} MiB at the end "
              f"({growth:+.1%})")
        require(growth <= options.growth, f"the process grew by {growth:.1%}; at most {options.growth:.1%}")
        status = server.stop(120)
        require(status == 0, f"the server's exit status is {status}: " + "".join(server.log[-40:]))
        print(f"soak: ok: {ended:.0f} requests in {options.seconds:.0f} s of {options.streams} streams")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=100, help="concurrent calls")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default=TINY_MODEL)
    parser.add_argument("--flag", action="append", default=[], help="a flag of the server, repeated")
    parser.add_argument("--growth", type=float, default=0.15, help="largest growth of resident memory once warm")
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
