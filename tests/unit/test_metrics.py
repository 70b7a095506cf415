"""Cells, families and what a scrape shows of them."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from orca_sidecar import metrics
from orca_sidecar.core.errors import LocalReplyReason, Termination
from orca_sidecar.core.identity import Pool, Refusal
from orca_sidecar.core.load_report import Format
from orca_sidecar.core.request_info import VERBS
from orca_sidecar.metrics import Cells, Collector, new_cells, reset_gauges
from orca_sidecar.metrics.families import (
    COMPUTED,
    FAMILIES,
    KEYED_FAMILIES,
    Gauge,
    Histogram,
    KeyedCounter,
)

GET, LIST = VERBS.index("get"), VERBS.index("list")


@pytest.fixture
def cells() -> Cells:
    return new_cells(1)[0]


def scrape(*all_cells: Cells) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample of a real exposition by its name and its label values in the order of the label names."""
    registry = CollectorRegistry()
    registry.register(Collector(all_cells))
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


# --- layout ---


def test_no_two_families_share_a_cell() -> None:
    taken: set[int] = set()
    for family in FAMILIES:
        mine = set(range(family.offset, family.offset + family.size))
        assert not mine & taken
        taken |= mine
    for keyed in KEYED_FAMILIES:
        first, last = keyed.entry(0)[0] // 8, keyed.entry(keyed.capacity)[1]
        assert not set(range(first, last + 1)) & taken
        taken |= set(range(first, last + 1))
    assert taken == set(range(metrics.CELLS))


def test_names_are_unique_and_follow_the_conventions() -> None:
    families = [*FAMILIES, *KEYED_FAMILIES, *COMPUTED]
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    for family in families:
        assert family.name.startswith("orca_sidecar_")
        assert family.documentation.endswith(".")
        is_counter = isinstance(family, metrics.Counter | KeyedCounter)
        assert family.name.endswith("_total") is is_counter


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_slot_is_offset_plus_strides_and_every_child_has_its_own(family: metrics.Counter) -> None:
    last = [len(values) - 1 for values in family.label_values]
    assert family.slot(*[0] * len(last)) == family.offset
    assert family.slot(*last) == family.offset + family.size - family.width
    inlined = family.offset + sum(index * stride for index, stride in zip(last, family.strides, strict=True))
    assert family.slot(*last) == inlined


def test_an_index_that_does_not_exist_is_refused() -> None:
    with pytest.raises(IndexError, match="requests_total"):
        metrics.REQUESTS.slot(GET, 600, 0)
    with pytest.raises(IndexError):
        metrics.REQUESTS.slot(-1, 200, 0)
    with pytest.raises(ValueError):
        metrics.REQUESTS.slot(GET, 200)
    with pytest.raises(ValueError):
        metrics.REQUESTS.named("get", "200", "perhaps")


def test_named_finds_the_same_cell() -> None:
    assert metrics.REQUESTS.named("list", "503", "true") == metrics.REQUESTS.slot(LIST, 503, 1)


def test_label_values_are_those_of_the_code_that_counts() -> None:
    assert metrics.REQUESTS.label_values[0] == VERBS
    assert metrics.TERMINATIONS.label_values[0][Termination.TUNNEL_CLOSED] == "tunnel_closed"
    assert metrics.LOCAL_REPLIES.label_values[0][LocalReplyReason.HEADER_TIMEOUT] == "header_timeout"
    assert metrics.LOAD_REPORTS_ATTACHED.label_values[0][Format.JSON] == "json"
    assert metrics.UPSTREAM_CONNECTS.label_values[0][Pool.FRONT_PROXY] == "front_proxy"
    assert "" not in metrics.IDENTITY_REFUSALS.label_values[0]
    for refusal in Refusal:
        if refusal:
            assert metrics.IDENTITY_REFUSALS.named(refusal) >= metrics.IDENTITY_REFUSALS.offset


# --- segments ---


def test_segments_are_zeroed_and_separate() -> None:
    first, second = new_cells(2)
    assert not any(first)
    first[metrics.CELLS - 1] = 7
    first[0] = 1
    assert not any(second)


def test_counts_of_a_forked_process_are_seen_by_its_parent() -> None:
    parent, child = new_cells(2)
    parent[metrics.REQUESTS.slot(GET, 200, 0)] = 2
    pid = os.fork()
    if pid == 0:
        child[metrics.REQUESTS.slot(GET, 200, 0)] += 3
        metrics.PRIORITY_LEVEL_REJECTIONS.recorder(child).increment(b"uid-1")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    samples = scrape(parent, child)
    assert samples["orca_sidecar_requests_total", ("200", "false", "get")] == 5
    assert samples["orca_sidecar_priority_level_rejections_total", ("uid-1",)] == 1
    assert metrics.REQUESTS.total([parent, child], GET, 200, 0) == 5


def test_a_dead_process_leaves_its_counters_and_no_gauges() -> None:
    dead, alive = new_cells(2)
    for segment in (dead, alive):
        segment[metrics.UPGRADES.slot()] += 2
        segment[metrics.UPSTREAM_CONNECTIONS.slot(Pool.FRONT_PROXY, metrics.ConnectionState.IDLE)] += 4
        segment[metrics.REQUESTS_IN_FLIGHT.slot(metrics.InFlight.LONG_RUNNING)] += 1
        segment[metrics.UPSTREAM_RETRIES.slot()] += 5
        metrics.REQUEST_DURATION.observe(segment, metrics.REQUEST_DURATION.slot(GET), 10)
        metrics.PRIORITY_LEVEL_REJECTIONS.recorder(segment).increment(b"uid-1")
    reset_gauges(dead)
    samples = scrape(dead, alive)
    assert samples["orca_sidecar_upgrades", ()] == 2
    assert samples["orca_sidecar_upstream_connections", ("front_proxy", "idle")] == 4
    assert samples["orca_sidecar_requests_in_flight", ("long_running",)] == 1
    assert samples["orca_sidecar_upstream_retries_total", ()] == 10
    assert samples["orca_sidecar_request_duration_seconds_count", ("get",)] == 2
    assert samples["orca_sidecar_priority_level_rejections_total", ("uid-1",)] == 2
    assert not any(dead[gauge.offset] for gauge in FAMILIES if isinstance(gauge, Gauge))


# --- what a scrape shows ---


def test_untouched_small_families_are_shown_at_zero_and_sparse_ones_are_not(cells: Cells) -> None:
    samples = scrape(cells)
    assert samples["orca_sidecar_handshake_failures_total", ("timeout",)] == 0
    assert samples["orca_sidecar_upstream_retries_total", ()] == 0
    assert not any(name.startswith("orca_sidecar_requests_total") for name, _ in samples)
    assert not any(name.startswith("orca_sidecar_request_duration") for name, _ in samples)


def test_every_cell_reaches_the_exposition_under_its_own_labels(cells: Cells) -> None:
    expected: dict[tuple[str, tuple[str, ...]], float] = {}
    for family in FAMILIES:
        if isinstance(family, Histogram):
            continue
        order = sorted(range(len(family.label_names)), key=lambda number: family.label_names[number])
        for index in range(0, family.size, 7):
            cells[family.offset + index] = value = index + 1
            labels = labels_of(family, index)
            expected[family.name, tuple(labels[number] for number in order)] = value
    samples = scrape(cells)
    assert {key: samples[key] for key in expected} == expected


def labels_of(family: metrics.Counter, index: int) -> list[str]:
    labels: list[str] = []
    for values in reversed(family.label_values):
        index, at = divmod(index, len(values))
        labels.insert(0, values[at])
    return labels


def test_a_gauge_goes_down_across_processes() -> None:
    first, second = new_cells(2)
    slot = metrics.DOWNSTREAM_CONNECTIONS.slot()
    first[slot] += 3
    second[slot] += 1
    first[slot] -= 2
    assert scrape(first, second)["orca_sidecar_downstream_connections", ()] == 2


def test_histogram_buckets_are_cumulative_and_their_bounds_inclusive(cells: Cells) -> None:
    slot = metrics.REQUEST_DURATION.slot(LIST)
    for ns in (0, 1_000_000, 1_000_001, 400_000_000, 60_000_000_000, 60_000_000_001):
        metrics.REQUEST_DURATION.observe(cells, slot, ns)
    samples = scrape(cells)

    def at(bound: str) -> float:
        return samples["orca_sidecar_request_duration_seconds_bucket", (bound, "list")]

    assert (at("0.001"), at("0.0025"), at("0.4"), at("45.0"), at("60.0"), at("+Inf")) == (2, 3, 4, 4, 5, 6)
    assert samples["orca_sidecar_request_duration_seconds_count", ("list",)] == 6
    seconds = samples["orca_sidecar_request_duration_seconds_sum", ("list",)]
    assert seconds == pytest.approx(120.402000002, abs=1e-9)
    assert not any(labels[-1] == "get" for name, labels in samples if name.endswith("_bucket"))


def test_callbacks_are_asked_at_every_scrape(cells: Cells) -> None:
    age = iter([0.1, 0.2])

    def sampler() -> Iterable[Metric]:
        yield metrics.SAMPLER_AGE.value(next(age))
        yield metrics.LOAD_REPORT.metric((("cpu_utilization",), 0.5), (("eps",), 0.0))
        yield metrics.BUILD_INFO.value(1, "1.0", "3.11")

    registry = CollectorRegistry()
    registry.register(Collector([cells], [sampler]))
    assert b"orca_sidecar_sampler_age_seconds 0.1\n" in generate_latest(registry)
    text = generate_latest(registry).decode()
    assert "orca_sidecar_sampler_age_seconds 0.2\n" in text
    assert 'orca_sidecar_load_report{field="cpu_utilization"} 0.5\n' in text
    assert 'orca_sidecar_build_info{python="3.11",version="1.0"} 1.0\n' in text


# --- counts by key ---

UIDS = metrics.PRIORITY_LEVEL_REJECTIONS


def test_counts_by_key(cells: Cells) -> None:
    recorder = UIDS.recorder(cells)
    uid = b"0c2d9a57-7a2f-4e0c-9d0e-7e8c4a9f3b11"
    for _ in range(3):
        recorder.increment(uid)
    recorder.increment(b"b")
    assert UIDS.read(cells) == {uid: 3, b"b": 1, b"other": 0}


@pytest.mark.parametrize("key", [b"", b"x" * 41, b"two words", b"\xff", b"a\n", b"other", b'"', b"a\0"])
def test_what_is_no_plain_key_is_counted_together(cells: Cells, key: bytes) -> None:
    recorder = UIDS.recorder(cells)
    recorder.increment(key)
    recorder.increment(b"plain")
    assert UIDS.read(cells) == {b"plain": 1, b"other": 1}


def test_the_table_is_bounded_and_keeps_counting_what_it_knows(cells: Cells) -> None:
    recorder = UIDS.recorder(cells)
    for number in range(100):
        recorder.increment(b"uid-%d" % number)
    recorder.increment(b"uid-63")
    counts = UIDS.read(cells)
    assert len(counts) == 65
    assert counts[b"uid-63"] == 2
    assert counts[b"other"] == 36


def test_a_successor_goes_on_with_the_keys_of_its_segment(cells: Cells) -> None:
    for _ in range(2):
        recorder = UIDS.recorder(cells)
        for number in range(40):
            recorder.increment(b"uid-%d" % number)
        recorder.increment(b"not plain")
    counts = UIDS.read(cells)
    assert counts.pop(b"other") == 2
    assert set(counts.values()) == {2}
    assert len(counts) == 40


def test_keys_are_bounded_over_all_processes() -> None:
    first, second = new_cells(2)
    for number in range(64):
        UIDS.recorder(first).increment(b"a-%d" % number)
    recorder = UIDS.recorder(second)
    for key in (b"a-0", b"b-0", b"b-1"):
        recorder.increment(key)
    shown = {labels: value for (name, labels), value in scrape(first, second).items() if name == UIDS.name}
    assert len(shown) == 65
    assert shown["a-0",] == 2
    assert shown["other",] == 2
