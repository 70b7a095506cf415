"""The log: one line a record on standard error, as JSON or as text, with secrets taken out.

Redaction is a filter on the one handler, so that it also holds for what libraries and asyncio log. It is a
second line of defence: the sidecar does not log heads, bodies or query strings in the first place.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, TextIO

REDACTED: Final = "[redacted]"

_LONGEST: Final = 16 * 1024  # characters of one text; bounds what a record can cost
# Without word boundaries: in the repr of bytes an "n" of "\\n" may stand before what is meant.
_PATTERNS: Final = tuple(
    (re.compile(pattern, re.DOTALL), replacement)
    for pattern, replacement in (
        # A private key in PEM, to its end or to the end of what was logged of it.
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", REDACTED),
        # A header with credentials, however it was printed (line, dict, pair of bytes): its whole value.
        (
            r"""(?i)((?:proxy-)?authorization|(?:set-)?cookie)(b?["']?\s*[:=,]\s*b?["']?)[^\r\n"']+""",
            rf"\1\2{REDACTED}",
        ),
        (r"(?i)(bearer[\s:=]+)(?!tokens?\b)[\w.~+/=-]+", rf"\1{REDACTED}"),
        # The token that browsers send as a WebSocket subprotocol.
        (r"(base64url\.bearer\.authorization\.k8s\.io\.)[\w.=-]+", rf"\1{REDACTED}"),
        # A JSON Web Token by its looks: service account and OIDC tokens.
        (r"eyJ[\w-]+\.[\w-]+\.[\w-]*", REDACTED),
        # `TEXT secret=…` of the opt-in header, and query parameters.
        (r"""(?i)(secret|password|token)=[^\s&"']+""", rf"\1={REDACTED}"),
        # Credentials in a URL.
        (r"(://[^/\s:@]+:)[^/\s@]+@", rf"\1{REDACTED}@"),
    )
)
_SECRET_NAMES: Final = re.compile(r"authorization|cookie|password|secret|token|private_?key", re.IGNORECASE)
_STANDARD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_CONTROL: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {10: "\\n", 13: "\\r", 9: "\\t"}


class Redaction(logging.Filter):
    """Takes secrets out of a record: message with its arguments, extra fields, exception and stack.

    `secrets` are texts to take out wherever they stand, besides what looks like a secret.
    """

    def __init__(self, secrets: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._secrets = tuple(secret for secret in secrets if secret)

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact in place; every record passes."""
        try:
            message = record.getMessage()
        except Exception:  # a wrong format string must neither raise in the caller nor be printed raw
            message = f"{record.msg} {record.args}"
        record.msg = self.text(message)
        record.args = ()
        for name, value in _extra(record).items():
            setattr(record, name, REDACTED if _SECRET_NAMES.search(name) else self._value(value))
        if record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
            record.exc_info = None
        if record.exc_text:
            record.exc_text = self.text(record.exc_text)
        if record.stack_info:
            record.stack_info = self.text(record.stack_info)
        return True

    def text(self, text: str) -> str:
        """A text without its secrets."""
        if len(text) > _LONGEST:
            text = text[:_LONGEST] + "…"
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text

    def _value(self, value: object) -> object:
        """A field's value as JSON can hold it."""
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, Mapping):
            return {
                str(name): REDACTED if _SECRET_NAMES.search(str(name)) else self._value(item)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple | set | frozenset):
            return [self._value(item) for item in value]
        return self.text(str(value))


class JsonFormatter(logging.Formatter):
    """One object a line: `time` (RFC 3339, UTC), `level`, `logger`, `message`, extra fields, `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _rfc3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in _extra(record).items():
            entry.setdefault(name, value)
        details = _details(record)
        if details:
            entry["exception"] = details
        return json.dumps(entry, separators=(",", ":"))


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message name=value …`, with control characters escaped: no record can look like
    two."""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{_rfc3339(record.created)} {record.levelname:<7} {record.name}: {record.getMessage()}"
        fields = "".join(f" {name}={value}" for name, value in _extra(record).items())
        lines = [(head + fields).translate(_CONTROL)]
        lines += ("    " + detail.translate(_CONTROL) for detail in _details(record).splitlines())
        return "\n".join(lines)


FORMATTERS: Final[dict[str, type[logging.Formatter]]] = {"json": JsonFormatter, "text": TextFormatter}


def configure(
    level: str, format: str, *, secrets: tuple[str, ...] = (), stream: TextIO | None = None
) -> None:
    """Send all loggers to one handler. May be called again.

    `level`: debug, info, warning or error; `format`: json or text (else KeyError); `secrets`: texts that
    must not be logged; `stream`: standard error unless given.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(FORMATTERS[format]())
    handler.addFilter(Redaction(secrets))
    logging.captureWarnings(True)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class RateLimited:
    """A logger that writes at most `lines` records of each key in `interval` seconds.

    The first record after a pause says how many were left out in it. Keys are the program's own words, never
    something a caller sent. `clock` gives seconds and must not go backwards.
    """

    __slots__ = ("_clock", "_interval", "_lines", "_logger", "_windows")

    def __init__(
        self,
        logger: logging.Logger,
        *,
        lines: int = 5,
        interval: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._lines = lines
        self._interval = interval
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    def info(self, key: str, message: str, *arguments: object) -> None:
        """Log, unless `key` had its share."""
        self.log(logging.INFO, key, message, *arguments)

    def warning(self, key: str, message: str, *arguments: object) -> None:
        """Log, unless `key` had its share."""
        self.log(logging.WARNING, key, message, *arguments)

    def error(self, key: str, message: str, *arguments: object) -> None:
        """Log, unless `key` had its share."""
        self.log(logging.ERROR, key, message, *arguments)

    def log(self, level: int, key: str, message: str, *arguments: object) -> None:
        """Log, unless `key` had its share."""
        if not self._logger.isEnabledFor(level):
            return
        now = self._clock()
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(now)
        if now - window.since >= self._interval:
            window.since = now
            window.written = 0
        if window.written == self._lines:
            window.suppressed += 1
            return
        window.written += 1
        extra = {"suppressed": window.suppressed} if window.suppressed else None
        window.suppressed = 0
        self._logger.log(level, message, *arguments, extra=extra)


class _Window:
    __slots__ = ("since", "suppressed", "written")

    def __init__(self, now: float) -> None:
        self.since = now
        self.written = 0
        self.suppressed = 0


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}


def _details(record: logging.LogRecord) -> str:
    return "\n".join(part for part in (record.exc_text, record.stack_info) if part)


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
