"""A memo remembers what it may, within bounds."""

from __future__ import annotations

import pytest

from orca_sidecar.core.memo import Memo


def test_a_key_is_read_once() -> None:
    read: list[bytes] = []
    memo = Memo(lambda key: read.append(key) or len(key))
    assert [memo[b"abc"], memo[b"abc"], memo[b"ab"]] == [3, 3, 2]
    assert read == [b"abc", b"ab"]


def test_long_keys_are_read_each_time() -> None:
    memo = Memo(len, longest=3)
    assert memo[b"abcd"] == 4
    assert b"abcd" not in memo
    assert memo[b"abc"] == 3
    assert b"abc" in memo


def test_an_error_is_not_remembered() -> None:
    memo = Memo(int)
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            memo[b"x"]
    assert not memo


def test_it_is_bounded_and_forgetting_changes_nothing() -> None:
    memo = Memo(bytes.decode)
    for number in range(10_000):
        assert memo[b"%d" % number] == str(number)
        assert len(memo) <= 4096
    assert memo[b"0"] == "0"
