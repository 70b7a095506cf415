#!/usr/bin/env python3
"""Measures the sidecar beside Envoy, HAProxy, nginx and plain Python proxies on this machine.

    bench/run.py                 every part, 20 to 30 minutes on a quiet machine
    bench/run.py --quick         the headline ratios, under a minute; the last line is one line of JSON
    bench/run.py --part get --part latency --peer envoy --peer sidecar

Refuses to give a figure where other programs kept the machine busy meanwhile. Exit status: 0 every figure was
had, 1 something failed, 3 the machine was busy.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

if not __package__:
    sys.path[0] = str(
        Path(__file__).resolve().parents[1]
    )  # not this folder: a module here is named as a library is

from bench.harness.loadgen import LOADGEN
from bench.harness.machine import describe_machine
from bench.harness.process import BenchError, raise_open_files
from bench.harness.report import headline, markdown, print_results, update_document
from bench.harness.runner import FOREIGN_LIMIT, describe_strangers, run_scenarios
from bench.harness.trial import NO_PROXY, Workshop
from bench.parts import PARTS
from bench.peers import PEERS

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parent / "docs" / "performance.md"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few repeats, the headline parts and peers only")
    parser.add_argument("--part", action="append", choices=sorted(PARTS), help="repeatable; default: all")
    parser.add_argument("--peer", action="append", choices=sorted(PEERS), help="repeatable; default: all")
    parser.add_argument("--repeats", type=int, help="instead of each part's own number")
    parser.add_argument(
        "--allow-busy", action="store_true", help="give figures of a busy machine, marked as such"
    )
    parser.add_argument("--output", type=Path, help="JSON file; default: a dated one under bench/results")
    parser.add_argument("--write-docs", action="store_true", help="put the tables into docs/performance.md")
    arguments = parser.parse_args()
    if arguments.write_docs and arguments.allow_busy:
        parser.error("figures of a busy machine do not go into the documentation")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    if not LOADGEN.exists():
        print(
            "the load generator is not built: run `make -C bench native` (needs cc and libssl-dev)",
            file=sys.stderr,
        )
        return 1
    started = time.monotonic()
    peers = {name: PEERS[name] for name in arguments.peer or PEERS}
    parts = [PARTS[name] for name in arguments.part] if arguments.part else list(PARTS.values())
    scenarios = [scenario for part in parts for scenario in part(arguments.quick)]
    used = {name for scenario in scenarios for name in scenario.subjects} - set(NO_PROXY)
    peers = {name: peer for name, peer in peers.items() if name in used}
    try:
        machine = describe_machine(peers.values())
    except (BenchError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    progress = not arguments.quick or sys.stderr.isatty()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        results = run_scenarios(
            Workshop(Path(folder), raise_open_files()),
            scenarios,
            peers,
            repeats=arguments.repeats,
            allow_busy=arguments.allow_busy,
            say=lambda text: print(text, file=sys.stderr, flush=True) if progress else None,
        )
    titles = {"direct-http2": "direct, HTTP/2"} | {name: peer.title for name, peer in peers.items()}
    print_results(scenarios, results, titles)
    summary = headline(results)
    if summary["busyMachine"]:
        print(f"This machine was busy ({describe_strangers()}): do not quote these figures.\n")
    record = {
        "machine": machine,
        "foreignCoresAllowed": FOREIGN_LIMIT,
        "results": {
            scenario.name: {
                "title": scenario.title,
                "unit": scenario.unit,
                "subjects": {name: outcome.as_json() for name, outcome in results[scenario.name].items()},
            }
            for scenario in scenarios
        },
        "summary": summary,
    }
    output = arguments.output or HERE / "results" / f"{machine['date'][:16].replace(':', '')}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    if arguments.write_docs:
        update_document(DOCUMENT, markdown(machine, scenarios, results, titles))
    print(
        json.dumps(
            {"seconds": round(time.monotonic() - started, 1), "results": os.path.relpath(output)} | summary
        )
    )
    problems = [
        outcome.problem for outcomes in results.values() for outcome in outcomes.values() if outcome.problem
    ]
    if any(problem.startswith("failed") for problem in problems):
        return 1
    return 3 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
