"""YAML: its form, its places, and its traps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orca_sidecar.settings.document import Document, key_path, read_document, to_yaml
from orca_sidecar.settings.problems import ConfigurationError, Problem


def read(folder: Path, content: str | bytes) -> Document:
    path = folder / "file.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_document(path)


def refusal(folder: Path, content: str | bytes) -> Problem:
    with pytest.raises(ConfigurationError) as caught:
        read(folder, content)
    (problem,) = caught.value.problems
    assert problem.file == folder / "file.yaml"
    return problem


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("on", "on"),
        ("NO", "NO"),
        ("12", 12),
        ("-3", -3),
        ("1.2", 1.2),
        ("1e-2", 0.01),
        ("2e2", 200.0),
        (".5", 0.5),
        ("0644", "0644"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("=", "="),
        ("'12'", "12"),
        ('"true"', "true"),
        (r'"\ud83d\ude00"', "\U0001f600"),
        ("|-\n  12", "12"),
        ("[1, two, {three: 3}]", [1, "two", {"three": 3}]),
        ("1" * 60, "1" * 60),
    ],
)
def test_scalars_are_those_of_yaml_1_2(tmp_path: Path, text: str, value: object) -> None:
    read_value = read(tmp_path, f"key: {text}\n").values["key"]
    assert (read_value, type(read_value)) == (value, type(value))


@pytest.mark.parametrize("text", ["", "~", "null"])
def test_a_key_without_a_value_is_not_given(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, f"key: {text}\nother: 1\n").values == {"other": 1}


def test_every_key_has_its_line(tmp_path: Path) -> None:
    document = read(tmp_path, "# comment\na:\n  b: 1\n  c:\n  - x\n  - y: 2\nd: {e: 3}\n")
    expected = {"": 2, "a": 2, "a.b": 3, "a.c": 4, "a.c[0]": 5, "a.c[1]": 6, "a.c[1].y": 6, "d": 7, "d.e": 7}
    assert document.lines == expected


def test_a_missing_key_is_placed_at_the_section_above(tmp_path: Path) -> None:
    document = read(tmp_path, "# comment\na:\n  b: [x]\n")
    for key, line in [("a.b[3].c", 3), ("a.z", 2), ("z.y", 2), ("", 2)]:
        located = document.locate(Problem(key, "is wrong", "mend it"))
        assert (located.line, located.file) == (line, document.path)


def test_duplicate_keys_are_all_named(tmp_path: Path) -> None:
    document = read(tmp_path, "a: 1\nb:\n  c: 1\n  c: 2\na:\n  d: 1\na: null\n")
    assert [(p.key, p.line) for p in document.problems] == [("b.c", 4), ("a", 5), ("a", 7)]
    assert "first on line 1" in document.problems[1].message


def test_tags_and_odd_keys_are_named(tmp_path: Path) -> None:
    document = read(tmp_path, "a: !!python/name:os.system x\nb: !mine {c: 1}\n? [k]\n: 1\n? {}\n: 2\n")
    assert [(p.key, document.locate(p).line) for p in document.problems] == [
        ("a", 1),
        ("b", 2),
        ("", 3),
        ("", 5),
    ]


@pytest.mark.parametrize(
    ("content", "line", "message", "advice"),
    [
        ("", 1, "empty", "apiVersion"),
        ("# nothing\n", 1, "empty", "apiVersion"),
        ("- a\n", 1, "mapping", "apiVersion"),
        ("word", 1, "mapping", "apiVersion"),
        ("a: 1\nb: 'x\n", 3, "not valid YAML", "quotes"),
        ("a:\n\tb: 1\n", 2, "not valid YAML", "spaces"),
        ("a: 1\nb: c: d\n", 2, "not valid YAML", "quotes"),
        ("a: 1\nb: [::]:6444\n", 2, "not valid YAML", "put the address in quotes"),
        ("a: &x 1\nb: *x\n", 2, "alias", "write the value out"),
        ('a: 1\nb: "\\ud83d"\n', 2, "half a character", "write the character itself"),
        ("a: &x [*x]\n", 1, "alias", "write the value out"),
        ("a: 1\n---\nb: 2\n", 2, "not valid YAML", "one document"),
        (b"a: 1\nb: \xff\n", 2, "UTF-8", "UTF-8"),
        ("a: 1\nb: \x07\n", 2, "control character", "remove"),
        ("[" * 5000, None, "nested", "docs/configuration.md"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(
    tmp_path: Path, content: str | bytes, line: int | None, message: str, advice: str
) -> None:
    problem = refusal(tmp_path, content)
    assert problem.line == line
    assert message in problem.message
    assert advice in problem.advice


def test_a_byte_order_mark_and_crlf_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, b"\xef\xbb\xbfa: 1\r\nb: 2\r\n").values == {"a": 1, "b": 2}


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read_document(tmp_path / "none.yaml")
    with pytest.raises(ConfigurationError, match="directory"):
        read_document(tmp_path)


PLAIN = st.recursive(
    st.booleans() | st.integers(-(10**15), 10**15) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3),
    max_leaves=10,
)


@given(values=st.dictionaries(st.text(min_size=1, max_size=5), PLAIN, max_size=4))
def test_what_is_written_reads_back_equal_as_yaml_1_2_and_1_1(
    values: dict[str, Any], tmp_path_factory: Any
) -> None:
    text = to_yaml(values)
    document = read(tmp_path_factory.mktemp("yaml"), text)
    assert document.values == values
    assert not document.problems
    assert yaml.safe_load(text) == values


def test_key_paths() -> None:
    assert key_path() == ""
    assert key_path("a", "b", 1, "c") == "a.b[1].c"
