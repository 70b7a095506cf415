"""Async tests here run on uvloop, as the product does, and on asyncio where a module asks for both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.integration.proxy_harness import identities, loop_factories, monotonic

__all__ = ["identities", "monotonic"]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return loop_factories(item)
