"""The live table: redrawn in place in a terminal, plain lines anywhere else."""

from __future__ import annotations

from typing import TextIO

from .measure import Summary

PLAIN_EVERY = 2
"""Without a terminal to redraw, only every so many readings are printed."""
_BAR = 30


def render(summary: Summary, title: str) -> list[str]:
    """The table as lines: node, share, utilization with a bar, weight."""
    lines = [title, f"  {'node':<8}{'share':>7}  {'utilization':<{_BAR + 8}}{'weight':>8}"]
    for name, share in summary.share.items():
        utilization = summary.utilization[name]
        filled = min(_BAR, round(utilization * _BAR))
        bar = "█" * filled + "·" * (_BAR - filled)
        lines.append(f"  {name:<8}{share:>7.1%}  {bar}{utilization:>7.1%} {summary.weight[name]:>8}")
    lines.append(f"  busiest node over the mean: {summary.max_over_mean:.2f}")
    return lines


def plain_line(summary: Summary, title: str) -> str:
    """The same on one line."""
    nodes = (
        f"{name} {share:.0%} of requests, {summary.utilization[name]:.0%} busy, weight {summary.weight[name]}"
        for name, share in summary.share.items()
    )
    return f"{title}: {' | '.join(nodes)} | max/mean {summary.max_over_mean:.2f}"


class LiveTable:
    """Shows reading after reading on `out`."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._redraw = out.isatty()
        self._lines_above = 0
        self._shown = 0

    def show(self, summary: Summary, title: str) -> None:
        self._shown += 1
        if not self._redraw:
            if self._shown % PLAIN_EVERY == 0:
                print(plain_line(summary, title), file=self._out, flush=True)
            return
        lines = render(summary, title)
        up = f"\x1b[{self._lines_above}A" if self._lines_above else ""
        print(up + "\n".join(f"\x1b[2K{line}" for line in lines), file=self._out, flush=True)
        self._lines_above = len(lines)
