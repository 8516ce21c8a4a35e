"""What must hold after a soak: counters that add up, and nothing held."""

import statistics
import sys

import grpc

from condense.v1 import admin_pb2, admin_pb2_grpc

OUTCOMES = ["accepted", "refused", "useless", "failed", "dropped"]


def require(condition, what):
    if not condition:
        raise SystemExit(f"soak: FAILED: {what}")


def check_receipt(request, receipt, count):
    """What the cache held for a finished request is what was asked for, and never more than without compaction."""
    asked = request.compression
    named = "custom" if asked.HasField("policy") else asked.preset
    wrong = (named and receipt.preset != named) or (asked.HasField("policy") and receipt.policy != asked.policy)
    if wrong or receipt.bytes_held > receipt.bytes_16bit or (receipt.preset == "off" and receipt.swaps_accepted > 0):
        print(f"asked for {asked}, got {receipt}".replace("\n", " "), file=sys.stderr)
        count("wrong receipts")
    count("units swapped", receipt.swaps_accepted)
    count("units refused", receipt.swaps_refused)
    if receipt.swaps_accepted > 0:
        count("compacted requests")


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


def held_by_the_cache(metrics):
    """The gauges that are zero when the cache is empty. They follow GetLoad by a moment."""
    names = ("condense_kv_bytes{", "condense_kv_tokens{", "condense_compaction_jobs_out{")
    held = {name: value for name, value in metrics.items() if name.startswith(names) and 'state="free"' not in name}
    require(len(held) == 6, f"bytes used, staging and slack, tokens of both kinds and jobs are expected in {held}")
    return held


def check_compaction(server, metrics, seen, options):
    """What came back was counted once, by what became of it."""
    def value(start, *labels):
        found = [number for name, number in metrics.items()
                 if name.startswith(start) and all(label in name for label in labels)]
        require(len(found) == 1, f"{start} with {labels} has {len(found)} series")
        return found[0]

    require(value("condense_kv_ratio{") == 1, "condense_kv_ratio of an empty cache is not 1")
    with grpc.insecure_channel(server.address) as channel:
        counted = admin_pb2_grpc.AdminStub(channel).GetCompression(
            admin_pb2.GetCompressionRequest(), timeout=10).state.swaps
    swaps = {outcome: value("condense_compaction_swaps_total{", f'outcome="{outcome}"') for outcome in OUTCOMES}
    print(f"soak: units that came back {swaps}")
    for outcome in OUTCOMES:
        require(swaps[outcome] == getattr(counted, outcome),
                f"{swaps[outcome]} units were {outcome}; GetCompression says {counted}")
    judged = swaps["accepted"] + swaps["refused"]
    for name in ("hit_ratio", "output_error"):
        observed = value(f"condense_compaction_{name}_count{{")
        require(observed == judged, f"{judged} units were accepted or refused, {observed} have a {name}")
    for phase in ("plan", "build", "validate"):
        timed = value("condense_compaction_seconds_count{", f'phase="{phase}"')
        require(timed == judged + swaps["useless"], f"{timed} units were timed in {phase}, of {swaps}")
    require(swaps["failed"] == 0, f"{swaps['failed']} units failed")
    for what, outcome in (("units swapped", "accepted"), ("units refused", "refused")):
        require(seen[what] <= swaps[outcome], f"receipts say {seen[what]} {what}, the server {swaps[outcome]}")
    require(seen["wrong receipts"] == 0, f"{seen['wrong receipts']} receipts are wrong")
    # How many are accepted in time depends on the machine.
    require(not options.compression or sum(swaps.values()) > 0, "no unit was ever compacted")


def check_memory(samples, options):
    half = len(samples) // 2
    warm, last = statistics.median(samples[:half]), statistics.median(samples[half:])
    change = last / warm - 1
    print(f"soak: resident {warm / 2**20:.1f} MiB when warm, {last / 2**20:.1f} MiB in the last quarter "
          f"({change:+.1%})")
    require(abs(change) <= options.growth, f"resident memory changed by {change:+.1%}; at most {options.growth:.1%}")
