"""Many runs at once: the model's in a pool of processes, the real ones in lanes, each with a rig of its own."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import uvloop

from orca_sidecar.demo.processes import StartupError

from .measures import Measures, latencies, measure
from .model.run import simulate
from .policies import POLICIES, Policy
from .real.rig import Rig, needs_rps_of_all
from .scenarios import SCENARIOS, Timeline
from .trace import DISTURBED, Trace

_PR_SET_PDEATHSIG = 1
_OVERHEAD = 3.0
"""Seconds of a real run besides its timeline: stand-ins and balancer coming up."""
_REPEATS = 2


@dataclass(frozen=True)
class Job:
    """One run, told by names: that is what goes to another process."""

    timeline: str
    policy: str
    seed: int


def _timeline(job: Job) -> Timeline:
    return next(one.timeline for one in SCENARIOS if one.timeline.name == job.timeline)


def _policy(job: Job) -> Policy:
    return next(one for one in POLICIES if one.name == job.policy)


@dataclass(frozen=True)
class Modelled:
    """What is kept of a modelled run: the trace of one seed is enough."""

    measures: dict[str, Measures]
    """By scenario."""
    latencies: dict[str, array[float]]
    trace: Trace | None


@contextmanager
def pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that are terminated with their parent, so that a lane ends what it started."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_follow_parent, initargs=(os.getpid(),)
    ) as executor:
        try:
            yield executor
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            executor.shutdown(cancel_futures=True)
            raise


def _follow_parent(parent: int) -> None:
    # A terminal's Ctrl-C reaches every process, and a second signal would interrupt the cleaning up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit("the bench is gone")


# -- the model -----------------------------------------------------------------------------------------------


def run_model(
    executor: ProcessPoolExecutor, jobs: Sequence[Job], keep_seed: int
) -> Iterator[tuple[Job, Modelled]]:
    """Run them all, in no order. The trace of `keep_seed` is kept."""
    futures: dict[Future[Modelled], Job] = {}
    for job in sorted(jobs, key=lambda job: -_timeline(job).seconds):  # the long ones first
        futures[executor.submit(_model, job, job.seed == keep_seed)] = job
    for future in as_completed(futures):
        yield futures[future], future.result()


def _model(job: Job, keep: bool) -> Modelled:
    trace = simulate(_timeline(job), _policy(job), job.seed)
    mine = [scenario for scenario in SCENARIOS if scenario.timeline.name == job.timeline]
    return Modelled(
        {one.name: measure(one, trace) for one in mine},
        {one.name: array("d", latencies(one, trace)) for one in mine},
        trace if keep else None,
    )


# -- real runs -----------------------------------------------------------------------------------------------


def run_real(
    executor: ProcessPoolExecutor, jobs: Sequence[Job], lanes: int, budget: float
) -> Iterator[tuple[Job, Trace | str]]:
    """Run them in `lanes` processes at once; a run that failed is told by a text instead of a trace.

    Disturbed runs are made again, at most twice each, as long as `budget` seconds from now suffice; the
    least disturbed one counts.
    """
    started = time.monotonic()
    shares = enumerate(_shares(jobs, lanes))
    futures = [executor.submit(_lane, number, share, started, budget) for number, share in shares if share]
    for future in as_completed(futures):
        yield from future.result()


def expected_seconds(jobs: Sequence[Job], lanes: int) -> float:
    """About how long `run_real` takes."""
    return max((sum(map(_seconds, share)) for share in _shares(jobs, lanes)), default=0.0)


def _seconds(job: Job) -> float:
    return _timeline(job).seconds + _OVERHEAD


def _shares(jobs: Sequence[Job], lanes: int) -> list[list[Job]]:
    """The longest first, each to the lane that has least to do. In a lane those of the same sidecar
    configuration follow each other."""
    shares: list[list[Job]] = [[] for _ in range(lanes)]
    for job in sorted(jobs, key=lambda job: (needs_rps_of_all(_policy(job)), -_timeline(job).seconds)):
        min(shares, key=lambda share: sum(map(_seconds, share))).append(job)
    return shares


def _lane(number: int, jobs: Sequence[Job], started: float, budget: float) -> list[tuple[Job, Trace | str]]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Lane(number, started, budget).run(jobs))


class _Lane:
    def __init__(self, number: int, started: float, budget: float) -> None:
        self._number = number
        self._started = started
        self._budget = budget
        self._done: dict[Job, Trace | str] = {}

    async def run(self, jobs: Sequence[Job]) -> list[tuple[Job, Trace | str]]:
        """Raises asyncio.CancelledError on SIGTERM, after everything that was started has ended."""
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGTERM, lambda: task.cancelling() or task.cancel()
        )
        with tempfile.TemporaryDirectory(prefix="bench-balance-") as folder:
            for attempt in range(1 + _REPEATS):
                for rps_scope_all in (False, True):
                    mine = [job for job in jobs if needs_rps_of_all(_policy(job)) == rps_scope_all]
                    wanted = [job for job in mine if self._is_wanted(job)]
                    if wanted:
                        name = f"{attempt}-{rps_scope_all}"
                        await self._run_in(Rig(Path(folder) / name, rps_scope_all=rps_scope_all), wanted)
        return list(self._done.items())

    async def _run_in(self, rig: Rig, jobs: Sequence[Job]) -> None:
        try:
            async with rig:
                for job in jobs:
                    if self._is_wanted(job):
                        await self._attempt(rig, job)
        except (StartupError, OSError) as error:
            for job in jobs:
                self._done.setdefault(job, str(error))

    async def _attempt(self, rig: Rig, job: Job) -> None:
        outcome: Trace | str
        try:
            outcome = await rig.run(_timeline(job), _policy(job), job.seed)
        except (StartupError, OSError, TimeoutError, aiohttp.ClientError) as error:
            outcome = f"{type(error).__name__}: {error}"
        last = self._done.get(job)
        if not isinstance(last, Trace) or (isinstance(outcome, Trace) and outcome.lateness < last.lateness):
            self._done[job] = outcome
        remark = outcome if isinstance(outcome, str) else f"sent {outcome.lateness * 1000:.0f} ms late at p99"
        text = f"{self._elapsed():4.0f} s  lane {self._number + 1}: {job.timeline} × {job.policy}, {remark}"
        print(text, file=sys.stderr, flush=True)

    def _is_wanted(self, job: Job) -> bool:
        """For the first time, or once more as long as there is time."""
        outcome = self._done.get(job)
        if outcome is None:
            return True
        disturbed = isinstance(outcome, str) or outcome.lateness > DISTURBED
        return disturbed and self._elapsed() + _seconds(job) < self._budget

    def _elapsed(self) -> float:
        return time.monotonic() - self._started
