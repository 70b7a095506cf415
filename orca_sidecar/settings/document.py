"""YAML to plain values, each with its place in the file, and back.

Scalars are read by the core schema of YAML 1.2 (section 10.3.2), in decimal only: ``on`` and ``1:30`` are
text, not a boolean and a number as in YAML 1.1. A key without a value counts as not given, as in
Kubernetes. Duplicate keys, aliases and tags are refused: none is needed here, and each hides what is meant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from orca_sidecar.settings.problems import ConfigurationError, Problem

_NULLS = ("", "~", "null", "Null", "NULL")
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_LONGEST_NUMBER = 40
_BARE_IPV6 = re.compile(r":\s+\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\]:[0-9]+\s*(#.*)?$")
_SYNTAX_ADVICE = {
    "an alias": "write the value out",
    "half a character": "write the character itself",
    "another document": "keep one document, without a --- between two",
    r"\t": "indent with spaces",
}
_OTHER_SYNTAX_ADVICE = "check the indentation, and put values that hold : # [ ] { } in quotes"
_TAGS = {yaml.MappingNode: "map", yaml.SequenceNode: "seq", yaml.ScalarNode: "str"}


@dataclass
class Document:
    """A YAML file: its values, the line (from 1) of every key path in it, and what is wrong with its form."""

    path: Path
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def locate(self, problem: Problem) -> Problem:
        """The problem with its place: the line it names, else its key's, else the section's above."""
        key = problem.key
        while key and key not in self.lines:
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        return replace(problem, file=self.path, line=problem.line or self.lines.get(key))


def key_path(*parts: str | int) -> str:
    """``("frontProxy", "allowedNames", 1)`` as ``frontProxy.allowedNames[1]``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".")


def read_document(path: Path) -> Document:
    """Read one YAML document. ConfigurationError if it cannot be read, is no YAML, or is no mapping."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        root = yaml.compose(text, Loader=_Loader)
    except OSError as error:
        raise _refusal(path, None, f"cannot be read: {error.strerror}", "name a readable file") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise _refusal(path, line, "is not UTF-8 text", "save it as UTF-8") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _refusal(path, line, "holds a control character", "remove it") from None
    except RecursionError:
        raise _refusal(path, None, "is nested too deeply", "see docs/configuration.md for its form") from None
    except yaml.MarkedYAMLError as error:
        raise _syntax_refusal(path, text, error) from None
    document = Document(path)
    if not isinstance(root, yaml.MappingNode):
        found = "is empty" if root is None else "is not a mapping of keys to values"
        raise _refusal(path, 1, found, "begin with apiVersion: and kind:")
    document.lines[""] = root.start_mark.line + 1
    document.values = _mapping(root, (), document)
    return document


def to_yaml(values: Mapping[str, Any]) -> str:
    """Plain values as YAML that reads back equal, by YAML 1.1 readers too."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=100)


class _Loader(yaml.SafeLoader):
    """Leaves scalars as written, and refuses aliases, with which a small file could say huge things."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - replaces the base class's

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "an alias (*name) stands here", mark)
        return super().compose_node(parent, index)

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        try:  # JSON escapes a character beyond U+FFFF as two: join them
            node.value = node.value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            problem = "an escape that is half a character stands here"
            raise yaml.composer.ComposerError(None, None, problem, node.start_mark) from None
        return node


class _Dumper(yaml.SafeDumper):
    pass


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if _scalar(text) == text else "'"
    )


_Dumper.add_representer(str, _represent_text)


def _scalar(text: str) -> Any:
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if len(text) <= _LONGEST_NUMBER:
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text


def _value(node: yaml.Node, at: tuple[str | int, ...], document: Document) -> Any:
    if node.tag != f"tag:yaml.org,2002:{_TAGS[type(node)]}":
        document.problems.append(
            Problem(key_path(*at), f"has the YAML tag {node.tag}", "remove the tag: plain values are enough")
        )
        return None
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, at, document)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            document.lines[key_path(*at, index)] = item.start_mark.line + 1
        return [_value(item, (*at, index), document) for index, item in enumerate(node.value)]
    assert isinstance(node, yaml.ScalarNode)
    return _scalar(node.value) if node.style is None else node.value


def _mapping(node: yaml.MappingNode, at: tuple[str | int, ...], document: Document) -> dict[str, Any]:
    values: dict[str, Any] = {}
    seen: set[str] = set()
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            document.problems.append(
                Problem(key_path(*at), "has a key that is a list or a mapping", "write a name", line=line)
            )
            continue
        name = key_node.value
        key = key_path(*at, name)
        if name in seen:
            document.problems.append(
                Problem(
                    key,
                    f"stands here a second time, first on line {document.lines[key]}",
                    "keep one",
                    line=line,
                )
            )
            continue
        seen.add(name)
        document.lines[key] = line
        value = _value(value_node, (*at, name), document)
        if value is not None:
            values[name] = value
    return values


def _refusal(path: Path, line: int | None, message: str, advice: str) -> ConfigurationError:
    return ConfigurationError([Problem("", message, advice, file=path, line=line)])


def _syntax_refusal(path: Path, text: str, error: yaml.MarkedYAMLError) -> ConfigurationError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    what = error.problem or error.context or "unreadable"
    source = text.splitlines()[line - 1 : line]
    if source and _BARE_IPV6.search(source[0]):
        advice = "put the address in quotes: a bare [ begins a list"
    else:
        advice = next(
            (advice for part, advice in _SYNTAX_ADVICE.items() if part in what), _OTHER_SYNTAX_ADVICE
        )
    return _refusal(path, line, f"is not valid YAML: {what}", advice)
