"""A real Prometheus scrapes the server: each documented metric can be asked for, with each value of its labels."""

import os
import re
import subprocess
import time
import urllib.request

import pytest

from condense.v1 import inference_pb2, inference_pb2_grpc
from prometheus_process import PrometheusProcess, find_program
from server_process import TINY_MODEL, ServerProcess

PAGE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "metrics.md")
LONGEST_WAIT_SECONDS = 20
TOKENS = 12
# A scrape that a busy machine was too slow for makes all series end; what was scraped before counts.
SINCE_THE_START = "[10m]"


def documented_metrics():
    """Name -> type and labels as on the page: label -> its values, none where they are not a closed set."""
    metrics = {}
    with open(PAGE) as page:
        for line in page:
            if not line.startswith("| `condense_"):
                continue
            name, kind, labels = (cell.strip() for cell in line.split("|")[1:4])
            values = {}
            for part in filter(None, labels.split(", ")):
                label, colon, value = part.partition(": ")
                if colon or not values or name.strip("`").endswith("_info"):
                    last = values.setdefault(label, set())
                    last.update([value] if colon else [])
                else:
                    last.add(part)
            metrics[name.strip("`")] = (kind, values)
    return metrics


def documented_queries():
    """The expressions that the page tells to ask."""
    with open(PAGE) as page:
        text = page.read().split("## Reading them")[1]
    return [span for span in re.findall(r"`([^`]+)`", text) if "condense_" in span]


METRICS = documented_metrics()


@pytest.fixture(scope="module")
def server():
    with ServerProcess(TINY_MODEL, "--kv_memory=16MiB", "--guard") as process:
        request = inference_pb2.GenerateRequest(text="hello")
        request.stopping.max_tokens = TOKENS
        request.stopping.ignore_eos = True
        with process.channel() as channel:
            inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=60)
        yield process


@pytest.fixture(scope="module")
def prometheus(server):
    with PrometheusProcess(server.metrics_url) as process:
        until = time.monotonic() + LONGEST_WAIT_SECONDS
        # Two, so that there is a rate.
        while process.query(f'sum_over_time(up{{job="condense"}}{SINCE_THE_START}) >= 2') == []:
            assert time.monotonic() < until, "nothing was scraped: " + "".join(process.log)
            time.sleep(0.1)
        yield process


def last(prometheus, selector):
    return prometheus.query(f"last_over_time({selector}{SINCE_THE_START})")


def test_the_page_was_read():
    assert len(METRICS) > 40
    assert METRICS["condense_kv_bytes"] == ("gauge", {"state": {"free", "slack", "staging", "used"}})
    assert METRICS["condense_model_info"] == ("gauge", {"architecture": set(), "backend": set(), "device": set()})
    assert METRICS["condense_guard_transitions_total"][1]["to"] == {
        "compacting", "holding", "probation", "uncompressed"}
    assert len(documented_queries()) > 10


@pytest.mark.parametrize("name", METRICS)
def test_each_documented_metric_can_be_asked_for(server, prometheus, name):
    kind, labels = METRICS[name]
    found = last(prometheus, name + ("_count" if kind == "histogram" else ""))
    assert found, f"Prometheus knows no {name}"
    seen = {}
    for series, _ in found:
        assert series["model"] == server.model
        for label, value in series.items():
            seen.setdefault(label, set()).add(value)
    for label in ["__name__", "job", "instance", "model"]:
        del seen[label]
    assert seen.keys() == labels.keys()
    for label, values in labels.items():
        assert seen[label] == (values or seen[label])


def test_values_are_those_of_the_server(server, prometheus):
    assert last(prometheus, "condense_generated_tokens_total")[0][1] == TOKENS
    assert last(prometheus, 'condense_requests_total{outcome="length"}')[0][1] == 1
    assert last(prometheus, "condense_ttft_seconds_count")[0][1] == 1
    served = server.metrics()
    model = f'{{model="{server.model}"}}'
    for name in ["condense_steps_total", "condense_request_seconds_sum", "condense_kv_ratio"]:
        assert last(prometheus, name)[0][1] == served[name + model]


@pytest.mark.parametrize("expression", documented_queries())
def test_what_the_page_tells_to_ask_can_be_asked(prometheus, expression):
    for name in re.findall(r"\bcondense_\w+", expression):
        assert name in METRICS or re.sub("_(bucket|sum|count)$", "", name) in METRICS, name
    prometheus.query(expression)


def test_promtool_finds_nothing_to_complain_about(server):
    with urllib.request.urlopen(server.metrics_url, timeout=10) as response:
        text = response.read()
    checked = subprocess.run([find_program("promtool"), "check", "metrics"], input=text, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, timeout=30)
    assert (checked.returncode, checked.stdout.decode()) == (0, "")
