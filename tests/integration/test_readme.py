"""What the README tells a newcomer to type, and what it shows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.partition("  #")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
]
MAKE = [command for command in COMMANDS if command.startswith("make ")]
PROGRAM = [command for command in COMMANDS if command.startswith(".venv/bin/orca-sidecar ")]


def test_every_command_is_one_that_is_tested() -> None:
    assert set(COMMANDS) == {*MAKE, *PROGRAM}
    assert {"make demo", "make test"} <= set(MAKE)


@pytest.mark.parametrize("command", MAKE)
def test_ci_runs_each_make_target(command: str) -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert re.search(rf"^step(_twice \S+)? {re.escape(command)}( |$)", ci, re.MULTILINE), (
        f"{command} is not run by .ci/run"
    )


@pytest.mark.parametrize("command", PROGRAM)
def test_each_program_command_does_what_is_said(command: str) -> None:
    done = subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if "print-config" in command:
        assert done.returncode == 0
        assert done.stdout.startswith("apiVersion: orca-sidecar.dev/v1alpha1\n")
        return
    # These two are for a control-plane node: elsewhere the certificates are what is missing, and all that is.
    assert done.returncode == 3, done.stderr
    problems = [
        line for line in done.stderr.splitlines() if re.match(r"config/orca-sidecar.yaml:\d+: ", line)
    ]
    assert problems
    assert all("/etc/kubernetes/pki/" in problem for problem in problems), done.stderr


def test_the_configuration_shown_is_the_one_shipped() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert shown == (ROOT / "config" / "orca-sidecar.yaml").read_text()


@pytest.mark.parametrize(
    "page", sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]), ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"
