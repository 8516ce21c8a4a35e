"""peer_cells with a stand-in for the peer: usage is PEER_CELLS CONDENSE MODEL on the command line."""

import argparse
import importlib.machinery
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PEER_CELLS, CONDENSE, MODEL = sys.argv[1:4]

FAKE_PEER = """#!/bin/sh
echo "some log line | with a bar"
echo "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |"
echo "|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|"
echo "|   512 |     32 |    8 |    576 |    1.000 |    50.00 |    1.000 |    25.00 |    2.000 |   100.00 |"
"""


class PeerCellsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def peer(self, script):
        tool = pathlib.Path(self.folder.name, "llama-batched-bench")
        tool.write_text(script)
        tool.chmod(0o755)

    def run_cells(self, *arguments):
        return subprocess.run([PEER_CELLS, "--condense", CONDENSE, "--model", MODEL, "--peer_bin", self.folder.name,
                               "--alternations", "1", "--threads", "1", *arguments], capture_output=True, text=True)

    def test_prints_one_line_per_cell(self):
        self.peer(FAKE_PEER)
        result = self.run_cells("--cell", "decode 1x128", "--cell", "decode 8x128")
        self.assertEqual(result.returncode, 0, result.stderr)
        single, decode = map(json.loads, result.stdout.splitlines())
        self.assertEqual((single["cell"], single["peer"]), ("decode 1x128", 25.0))
        self.assertEqual((decode["cell"], decode["peer"]), ("decode 8x128", 25.0))
        # On a busy machine the reader of so small a model may meet all tokens at once: 0, nothing to measure.
        self.assertGreaterEqual(single["ours"], 0)
        self.assertAlmostEqual(decode["ratio"], decode["ours"] / 25.0, places=2)

    def test_says_what_the_peer_said_when_it_fails(self):
        self.peer("#!/bin/sh\necho no such model >&2\nexit 3\n")
        result = self.run_cells("--cell", "decode 1x128")
        self.assertEqual(result.returncode, 1)
        self.assertIn("no such model", result.stderr)

    def test_refuses_a_folder_without_the_peer(self):
        result = self.run_cells()
        self.assertEqual(result.returncode, 2)
        self.assertIn("llama-batched-bench is not there", result.stderr)

    def test_the_peers_best_kv_type_counts_and_is_run_once_for_both_presets(self):
        loader = importlib.machinery.SourceFileLoader("peer_cells", PEER_CELLS)
        cells = importlib.util.module_from_spec(importlib.util.spec_from_loader("peer_cells", loader))
        loader.exec_module(cells)
        runs = []

        def fake_run(command):
            runs.append(command)
            speed = {"f16": 10.0, "q8_0": 12.0, "q4_0": 11.0}[command[command.index("-ctk") + 1]]
            return f"| S_PP t/s | S_TG t/s |\n|---|---|\n| 1.0 | {speed} |\n"

        cells.run = fake_run
        cells.measure_ours = lambda arguments, cell: {
            "decode_tps": 48.0 if cell.preset == "balanced" else 24.0, "cache_ratio": 4.5, "step_ms_p50": 1.0,
            "step_ms_p99": 2.0}
        arguments = argparse.Namespace(peer_bin=pathlib.Path("/"), model="m", threads=2, alternations=2, verbose=False)
        peer_runs = [{}, {}]
        off = cells.compare(arguments, "decode 1x7000 off", peer_runs)
        balanced = cells.compare(arguments, "decode 1x7000 balanced", peer_runs)
        self.assertEqual((off["peer"], off["ratio"], balanced["ratio"]), (12.0, 2.0, 4.0))
        self.assertEqual(balanced["peer_by_kv"], {"f16": 10.0, "q8_0": 12.0, "q4_0": 11.0})
        self.assertEqual(len(runs), 2 * 3)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
