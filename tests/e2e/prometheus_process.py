"""A Prometheus of the test's own, on a free port of the loopback, with its data in a folder that goes with it."""

import json
import queue
import re
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request

SCRAPE_INTERVAL = "1s"
CONFIG = """
global:
  scrape_interval: {interval}
  scrape_timeout: {interval}
scrape_configs:
  - job_name: condense
    metrics_path: {path}
    static_configs:
      - targets: ['{target}']
"""


def find_program(name):
    """Its path. Fails where it is missing: a check that is skipped says nothing."""
    path = shutil.which(name)
    if path is None:
        raise RuntimeError(f"{name} is not installed; it comes with the Debian package prometheus, "
                           "which scripts/setup installs")
    return path


class PrometheusProcess:
    """Started when made; the end of a `with` block ends it by its own process id and removes its data."""

    def __init__(self, metrics_url, start_seconds=20):
        url = urllib.parse.urlsplit(metrics_url)
        program = find_program("prometheus")
        self._folder = tempfile.TemporaryDirectory(prefix="condense_prometheus_")
        config = f"{self._folder.name}/prometheus.yml"
        with open(config, "w") as file:
            file.write(CONFIG.format(interval=SCRAPE_INTERVAL, path=url.path, target=url.netloc))
        self.process = subprocess.Popen(
            [program, f"--config.file={config}", f"--storage.tsdb.path={self._folder.name}/data",
             "--web.listen-address=127.0.0.1:0", "--storage.tsdb.retention.time=1h"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.log = []
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read_log)
        self._reader.start()
        try:
            self.url = f"http://{self._await_address(time.monotonic() + start_seconds)}"
            self._await_ready(time.monotonic() + start_seconds)
        except BaseException:
            self.end()
            raise

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line)
            self._lines.put(line)
        self._lines.put(None)

    def _await_address(self, until):
        while True:
            line = self._lines.get(timeout=max(0.1, until - time.monotonic()))
            if line is None:
                raise RuntimeError("Prometheus ended: " + "".join(self.log))
            listening = re.search(r'msg="Listening on" address=(\S+)', line)
            if listening:
                return listening[1]

    def _await_ready(self, until):
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                    return
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def query(self, expression):
        """What the query API finds now: pairs of labels and value. Raises if it refuses the expression."""
        question = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query?{question}", timeout=10) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{expression}: {error.read().decode()}") from error
        assert answer["status"] == "success", answer
        if answer["data"]["resultType"] == "scalar":
            return [({}, float(answer["data"]["result"][1]))]
        return [(series["metric"], float(series["value"][1])) for series in answer["data"]["result"]]

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=10)
        self._reader.join(timeout=10)
        self._folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.end()
