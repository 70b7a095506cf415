"""The command line. Exit codes: 0 done, 2 usage, 3 configuration refused, 4 start failed."""

from __future__ import annotations

import argparse
import platform
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path

from orca_sidecar import __version__
from orca_sidecar.settings.load import check_configuration, dump_configuration, load_configuration
from orca_sidecar.settings.problems import ConfigurationError, Problem
from orca_sidecar.settings.schema import SidecarConfiguration

EXIT_CONFIGURATION = 3
"""The configuration cannot be used; starting again without a change is of no use."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Usage errors end in SystemExit(2), as argparse does."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if options.command == "demo":
        from orca_sidecar.demo.run import main as demo

        return demo(rest)
    if rest:
        parser.error(f"unknown arguments: {' '.join(rest)}")
    if options.command == "version":
        interpreter = f"{platform.python_implementation()} {platform.python_version()}"
        print(f"orca-sidecar {__version__} ({interpreter}, {' '.join(ssl.OPENSSL_VERSION.split()[:2])})")
        return 0
    try:
        return _configured(options.command, options.config)
    except ConfigurationError as error:
        return _refused(options.config, error.problems)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="orca-sidecar",
        description="Node-local reverse proxy for kube-apiserver that attaches ORCA load reports.",
        epilog="Exit codes: 0 done, 2 usage, 3 configuration refused, 4 start failed.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("run", "serve until SIGTERM"),
        ("check-config", "check the configuration and the files that it names"),
        ("print-config", "print the effective configuration, defaults included"),
    ):
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.add_argument(
            "--config", type=Path, required=True, metavar="FILE", help="configuration (YAML)"
        )
    commands.add_parser("demo", help="show load-aware balancing on this machine", add_help=False)
    commands.add_parser("version", help="print the version", description="print the version")
    return parser


def _configured(command: str, path: Path) -> int:
    if command == "print-config":
        print(dump_configuration(load_configuration(path)), end="")
        return 0
    configuration, warnings = check_configuration(path)
    _say(warnings)
    if command == "check-config":
        print(f"{path}: valid")
        return 0
    return _serve(configuration)


def _serve(configuration: SidecarConfiguration) -> int:
    from orca_sidecar import supervisor  # late: the other commands need none of the data plane

    return supervisor.run(configuration)


def _refused(path: Path, problems: Sequence[Problem]) -> int:
    _say(problems)
    errors = sum(problem.severity == "error" for problem in problems)
    print(f"orca-sidecar: {path} refused: {errors} error{'s' * (errors != 1)}", file=sys.stderr)
    return EXIT_CONFIGURATION


def _say(problems: Sequence[Problem]) -> None:
    for problem in problems:
        print(problem, file=sys.stderr)
