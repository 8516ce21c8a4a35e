"""Runs `condensed` as a child process on free loopback ports."""

import os
import queue
import re
import signal
import subprocess
import threading
import time
import urllib.request

import grpc

TINY_MODEL = os.path.join(os.environ["CONDENSE_TEST_DATA"], "tiny", "llama-f32.gguf")
DEMO_MODEL = os.path.join(os.environ["CONDENSE_MODELS"], "SmolLM2-135M-Instruct.Q4_1.gguf")


class ServerProcess:
    """Started when made; `stop` or the end of a `with` block ends it by its own process id."""

    def __init__(self, model, *flags, start_seconds=120):
        self.process = subprocess.Popen(
            [os.environ["CONDENSED"], f"--model={model}", "--listen=127.0.0.1:0",
             "--metrics_listen=127.0.0.1:0", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.log = []
        self._lines = queue.Queue()
        self._threads = [threading.Thread(target=self._read_output), threading.Thread(target=self._read_log)]
        for thread in self._threads:
            thread.start()
        self.metrics_url = None
        try:
            self._wait_until_serving(time.monotonic() + start_seconds)
        except BaseException:
            self.kill()
            raise

    def _read_output(self):
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line)

    def _wait_until_serving(self, until):
        while True:
            line = self._lines.get(timeout=max(0.1, until - time.monotonic()))
            if line is None:
                raise RuntimeError("the server ended: " + "".join(self.log))
            metrics = re.fullmatch(r"condensed: metrics on (\S+)\n", line)
            if metrics:
                self.metrics_url = metrics[1]
            serving = re.fullmatch(r"condensed: serving (\S+) on (\S+)\n", line)
            if serving:
                self.model, self.address = serving[1], serving[2]
                return

    def channel(self):
        """A channel with a connection of its own."""
        return grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])

    def metrics(self):
        """Name with labels -> value."""
        with urllib.request.urlopen(self.metrics_url, timeout=10) as response:
            lines = response.read().decode().splitlines()
        return {name: float(value) for name, value in
                (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))}

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))

    def open_descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def send(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, seconds):
        """The exit status."""
        status = self.process.wait(timeout=seconds)
        for thread in self._threads:
            thread.join(timeout=10)
        return status

    def stop(self, seconds=60):
        self.send()
        return self.wait(seconds)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.wait(30)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.kill()
