"""From a YAML file to the configuration: everything that is wrong with it is said at once.

A value that is wrong is left out and the rest read on with its default, so that the rules between keys, and
the files that are named, can be checked in the same go. What depends on a left-out key is not checked.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from orca_sidecar.settings.document import Document, key_path, read_document, to_yaml
from orca_sidecar.settings.files import check_files
from orca_sidecar.settings.problems import ConfigurationError, InvalidValueError, Problem, related, within
from orca_sidecar.settings.rules import violations
from orca_sidecar.settings.schema import API_VERSION, KIND, SidecarConfiguration
from orca_sidecar.settings.section import keys, sections
from orca_sidecar.settings.values import nearest, shown

_REQUIRED: Mapping[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "listener": {"tls": {"certFile": "/", "keyFile": "/"}},
    "upstream": {"tls": {"caFile": "/"}},
}
"""Stand-ins for the required keys, with which a file that lacks them is read on."""

_SECTIONS = dict(sections(SidecarConfiguration))
_KEYS = dict(keys(SidecarConfiguration))


def load_configuration(path: Path) -> SidecarConfiguration:
    """Read the file. ConfigurationError, with all problems, if it cannot be used.

    The files that it names are not looked at; ``check_configuration`` does that too.
    """
    reading = _read(path)
    reading.refuse_errors()
    return reading.configuration


def check_configuration(path: Path) -> tuple[SidecarConfiguration, list[Problem]]:
    """Read the file and look at the files that it names; returns the configuration and any warnings.

    ConfigurationError, with errors and warnings together, if there is an error.
    """
    reading = _read(path)
    reading.add(check_files(reading.configuration))
    reading.refuse_errors()
    return reading.configuration, reading.problems


def dump_configuration(configuration: SidecarConfiguration) -> str:
    """The effective configuration, defaults included, as YAML that loads back equal."""
    return to_yaml(configuration.model_dump(mode="json", by_alias=True))


@dataclass
class _Reading:
    """A configuration as far as it could be read: the keys in ``unread`` have defaults or stand-ins."""

    document: Document
    configuration: SidecarConfiguration
    unread: list[str]
    problems: list[Problem]

    def add(self, problems: list[Problem]) -> None:
        """Take in problems, but those of keys that were not read; all end up in the file's order."""
        self.problems += [p for p in problems if not any(related(p.key, key) for key in self.unread)]
        self.problems = sorted(
            map(self.document.locate, self.problems), key=lambda problem: problem.line or 0
        )

    def refuse_errors(self) -> None:
        if any(problem.severity == "error" for problem in self.problems):
            raise ConfigurationError(self.problems)


def _read(path: Path) -> _Reading:
    document = read_document(path)
    try:
        reading = _Reading(document, _validate(document.values), [], list(document.problems))
    except ValidationError as error:
        reading = _read_on(document, error.errors(include_url=False))
    reading.unread += [problem.key for problem in document.problems]
    reading.add(violations(reading.configuration, reading.unread))
    return reading


def _validate(values: Mapping[str, Any]) -> SidecarConfiguration:
    return SidecarConfiguration.model_validate(values, by_alias=True, by_name=False)


def _read_on(document: Document, errors: list[ErrorDetails]) -> _Reading:
    """Read the file without the values that are wrong."""
    values = copy.deepcopy(document.values)
    problems = list(document.problems)
    unread: list[str] = []
    for error in (error for error in errors if error["type"] == "extra_forbidden"):
        problem, meant = _unknown_key(error["loc"])
        problems.append(problem)
        unread += [key for key in meant if key not in document.lines]
        _remove(values, error["loc"])
    for error in (error for error in errors if error["type"] != "extra_forbidden"):
        key = key_path(*error["loc"])
        if error["type"] != "missing":
            _remove(values, error["loc"])
        elif any(within(key, other) for other in unread):
            continue  # misspelt, which is said already
        problems.append(_problem(key, error))
        unread.append(key.split("[")[0])
    return _Reading(document, _validate(_merged(_REQUIRED, values)), unread, problems)


def _problem(key: str, error: ErrorDetails) -> Problem:
    value = error["input"]
    match error["type"]:
        case "missing":
            return Problem(key, "is missing", f"it is required: {_KEYS[key].description}")
        case "model_type":
            names = ", ".join(_names(key))
            return Problem(key, f"is {shown(value)}, not a mapping", f"write these keys below it: {names}")
        case "tuple_type":
            return Problem(key, f"is {shown(value)}, not a list", "write a list, such as [a, b]")
        case _:
            invalid = error["ctx"]["error"]
            assert isinstance(invalid, InvalidValueError), error
            return Problem(key, invalid.message, invalid.advice)


def _unknown_key(loc: tuple[int | str, ...]) -> tuple[Problem, list[str]]:
    """The problem, and the paths of the keys that may have been meant."""
    section, name = key_path(*loc[:-1]), str(loc[-1])
    near = nearest(name, _names(section))
    if near:
        meant = [key_path(*loc[:-1], near)]
    else:
        meant = [key for key in (*_KEYS, *_SECTIONS) if key.rpartition(".")[2] == name != ""][:2]
    candidates = f"did you mean {' or '.join(meant)}?"
    advice = candidates if meant else f"keys here are {', '.join(_names(section))}"
    return Problem(key_path(*loc), "is no key of this file", advice), meant


def _names(section: str) -> tuple[str, ...]:
    return tuple(str(field.alias) for field in _SECTIONS[section].model_fields.values())


def _remove(values: dict[str, Any], loc: tuple[int | str, ...]) -> None:
    """Take out the value at ``loc``; a list is taken out whole. It may be gone already."""
    parts = [part for part in loc if isinstance(part, str)]
    for part in parts[:-1]:
        values = values.get(part, {})
    values.pop(parts[-1], None)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` with what it lacks from ``base``."""
    return {
        **base,
        **{
            name: _merged(base[name], value) if isinstance(base.get(name), dict) else value
            for name, value in over.items()
        },
    }
