"""The kinds of metrics, on plain integers in memory that all processes share.

A family is a dense table of int64 cells, with a fixed place in a segment of memory. Each process has a
segment of its own, so that a cell has one writer and nothing is locked; a scrape adds the segments up.
Label values are enumerated beforehand: counting is arithmetic on indices, and no caller can make a label.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, StrEnum
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

Cells: TypeAlias = memoryview
"""One process's segment: int64 (format "q"), at least `layout.cells` of them."""
Labels: TypeAlias = Sequence[str] | type[Enum]
"""The values of one label, in the order of their indices. Of an IntEnum, which has to count from 0, the
names in lower case; of a StrEnum the values, an empty one left out."""

_PREFIX: Final = "orca_sidecar_"
CELL_BYTES: Final = 8
_KEY: Final = re.compile(rb"[0-9A-Za-z._-]{1,40}")
_KEY_BYTES: Final = 40  # a UID has 36
_KEY_CELLS: Final = _KEY_BYTES // CELL_BYTES


class Layout:
    """Hands out the cells of a segment, one family after the other."""

    cells = 0

    def take(self, size: int) -> int:
        offset = self.cells
        self.cells += size
        return offset


layout: Final = Layout()
FAMILIES: Final[list[Family]] = []
KEYED_FAMILIES: Final[list[KeyedCounter]] = []
COMPUTED: Final[list[Computed]] = []


def _label_values(labels: Labels) -> tuple[str, ...]:
    if not isinstance(labels, type):
        return tuple(labels)
    if issubclass(labels, StrEnum):
        return tuple(member.value for member in labels if member.value)
    assert [member.value for member in labels] == list(range(len(labels))), f"{labels} is no index"
    return tuple(member.name.lower() for member in labels)


class Family:
    """One metric: `slot(*label_indices)` is the absolute index of its cell in every segment.

    `strides` are the distances between neighbouring values of each label, in cells. Children that are still
    zero are exposed, so that `increase()` sees the first event, unless the family is `sparse`: then its
    labels have far more combinations than ever occur.
    """

    width: int = 1
    """Cells a child, the combination of one value of each label."""

    def __init__(self, name: str, documentation: str, *, sparse: bool = False, **labels: Labels) -> None:
        self.name: Final = _PREFIX + name
        self.documentation: Final = documentation
        self.label_names: Final = tuple(labels)
        self.label_values: Final = tuple(_label_values(values) for values in labels.values())
        self.sparse: Final = sparse
        strides: list[int] = []
        size = self.width
        for values in reversed(self.label_values):
            strides.insert(0, size)
            size *= len(values)
        self.strides: Final = tuple(strides)
        self.size: Final = size
        self.offset: Final = layout.take(size)
        FAMILIES.append(self)

    def slot(self, *indices: int) -> int:
        """The cell of one combination of labels, given as indices in the order of declaration.

        Raises IndexError rather than point into another family, and ValueError for too few or too many
        indices.
        """
        slot = self.offset
        for index, stride, values in zip(indices, self.strides, self.label_values, strict=True):
            if not 0 <= index < len(values):
                raise IndexError(f"{self.name} has no label value {index}")
            slot += index * stride
        return slot

    def named(self, *values: str) -> int:
        """The same cell by label values, off the hot path. Raises ValueError for one that is not declared."""
        pairs = zip(self.label_values, values, strict=True)
        return self.slot(*(known.index(value) for known, value in pairs))

    def total(self, all_cells: Iterable[Cells], *indices: int) -> int:
        """One cell, summed over processes."""
        slot = self.slot(*indices)
        return sum(cells[slot] for cells in all_cells)

    def collect(self, totals: Mapping[int, int]) -> Metric:
        """What a scrape shows. `totals`: every cell that is not zero, summed over processes, by slot."""
        raise NotImplementedError

    def _children(self, totals: Mapping[int, int]) -> Iterator[tuple[list[str], int]]:
        """Label values and first slot of every child to expose."""
        numbers: Iterable[int] = range(self.size // self.width)
        if self.sparse:
            end = self.offset + self.size
            numbers = sorted(
                {(slot - self.offset) // self.width for slot in totals if self.offset <= slot < end}
            )
        for number in numbers:
            rest = number * self.width
            labels: list[str] = []
            for stride, values in zip(self.strides, self.label_values, strict=True):
                index, rest = divmod(rest, stride)
                labels.append(values[index])
            yield labels, self.offset + number * self.width


class Counter(Family):
    """Events since the sidecar was started: `cells[slot] += 1`. A worker that died leaves its count."""

    def collect(self, totals: Mapping[int, int]) -> Metric:
        metric = CounterMetricFamily(self.name, self.documentation, labels=self.label_names)
        for labels, slot in self._children(totals):
            metric.add_metric(labels, totals.get(slot, 0))
        return metric


class Gauge(Family):
    """Something each process has a number of: `cells[slot] += 1`, and `-= 1` when it is gone."""

    def collect(self, totals: Mapping[int, int]) -> Metric:
        metric = GaugeMetricFamily(self.name, self.documentation, labels=self.label_names)
        for labels, slot in self._children(totals):
            metric.add_metric(labels, totals.get(slot, 0))
        return metric


class Histogram(Family):
    """Durations, observed in nanoseconds and exposed in seconds.

    A child is `len(bounds) + 1` buckets (not cumulative, the last one unbounded) and then the sum, at
    `slot + sum_at`.
    """

    bounds: Final = tuple(
        round(seconds * 1e9)
        for seconds in (
            *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5),
            *(2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0),
        )
    )
    """Upper bounds, inclusive, ns: like kube-apiserver's own durations, finer below 100 ms."""
    sum_at: Final = len(bounds) + 1
    width = len(bounds) + 2

    def observe(self, cells: Cells, slot: int, ns: int) -> None:
        """Count one duration in the child that begins at `slot`."""
        cells[slot + bisect_left(self.bounds, ns)] += 1
        cells[slot + self.sum_at] += ns

    def collect(self, totals: Mapping[int, int]) -> Metric:
        metric = HistogramMetricFamily(self.name, self.documentation, labels=self.label_names)
        bounds = [*(str(bound / 1e9) for bound in self.bounds), "+Inf"]
        for labels, slot in self._children(totals):
            counts = accumulate(totals.get(slot + number, 0) for number in range(len(bounds)))
            buckets: list[tuple[str, float]] = list(zip(bounds, counts, strict=True))
            metric.add_metric(labels, buckets, totals.get(slot + self.sum_at, 0) / 1e9)
        return metric


class KeyedCounter:
    """A counter by keys that only running shows: short ASCII names, `capacity` of them in each process.

    Each process keeps the keys beside their counts in its own segment. Whatever is not a plain name, and
    whatever comes when the table is full, counts as "other"; so does, at a scrape, what is beyond
    `capacity` in all.
    """

    capacity: Final = 64
    other: Final = b"other"

    def __init__(self, name: str, documentation: str, label: str) -> None:
        self.name: Final = _PREFIX + name
        self.documentation: Final = documentation
        self.label_names: Final = (label,)
        self.offset: Final = layout.take((self.capacity + 1) * (_KEY_CELLS + 1))
        KEYED_FAMILIES.append(self)

    def entry(self, number: int) -> tuple[int, int]:
        """Where one entry is: the index of its key in bytes, of its count in cells. The last is for
        "other"."""
        start = self.offset + number * (_KEY_CELLS + 1)
        return start * CELL_BYTES, start + _KEY_CELLS

    def read(self, cells: Cells) -> dict[bytes, int]:
        """One process's counts, by key and in the order of their entries, "other" last."""
        raw = cells.cast("B")
        counts: dict[bytes, int] = {}
        for number in range(self.capacity):
            start, slot = self.entry(number)
            key = bytes(raw[start : start + _KEY_BYTES]).rstrip(b"\0")
            if not key:
                break
            counts[key] = cells[slot]
        counts[self.other] = cells[self.entry(self.capacity)[1]]
        return counts

    def recorder(self, cells: Cells) -> KeyedRecorder:
        """The one writer of `cells`. It goes on with what an earlier process left there."""
        return KeyedRecorder(self, cells)

    def collect(self, all_cells: Iterable[Cells]) -> Metric:
        """What a scrape shows."""
        totals = {self.other: 0}
        for cells in all_cells:
            for key, count in self.read(cells).items():
                if key not in totals and len(totals) > self.capacity:
                    key = self.other
                totals[key] = totals.get(key, 0) + count
        metric = CounterMetricFamily(self.name, self.documentation, labels=self.label_names)
        for key, count in totals.items():
            metric.add_metric([key.decode("ascii")], count)
        return metric


class KeyedRecorder:
    """Counts by key for one process."""

    __slots__ = ("_cells", "_family", "_other", "_slots")

    def __init__(self, family: KeyedCounter, cells: Cells) -> None:
        self._family = family
        self._cells = cells
        self._other = family.entry(family.capacity)[1]
        self._slots = {key: family.entry(number)[1] for number, key in enumerate(family.read(cells))}
        self._slots[family.other] = self._other

    def increment(self, key: bytes) -> None:
        """Count one event of `key`."""
        slot = self._slots.get(key)
        if slot is None:
            slot = self._claim(key)
        self._cells[slot] += 1

    def _claim(self, key: bytes) -> int:
        number = len(self._slots) - 1  # "other" is always among them
        if number == self._family.capacity or not _KEY.fullmatch(key):
            return self._other
        start, slot = self._family.entry(number)
        self._cells.cast("B")[start : start + len(key)] = key
        self._slots[key] = slot
        return slot


class Computed:
    """A gauge that is asked for when it is scraped: the callbacks given to `Collector` make its metric."""

    def __init__(self, name: str, documentation: str, *label_names: str) -> None:
        self.name: Final = _PREFIX + name
        self.documentation: Final = documentation
        self.label_names: Final = label_names
        COMPUTED.append(self)

    def metric(self, *samples: tuple[tuple[str, ...], float]) -> Metric:
        """The metric with the given samples: label values, in the order of declaration, and the value."""
        metric = GaugeMetricFamily(self.name, self.documentation, labels=self.label_names)
        for labels, value in samples:
            metric.add_metric(labels, value)
        return metric

    def value(self, value: float, *labels: str) -> Metric:
        """The metric with a single sample."""
        return self.metric((labels, value))
