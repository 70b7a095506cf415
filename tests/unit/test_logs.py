"""The log's formats, what never gets into it, and how often a line may repeat."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest

from orca_sidecar import logs
from orca_sidecar.logs import REDACTED, RateLimited, Redaction

log = logging.getLogger("orca_sidecar.test")


@pytest.fixture(autouse=True)
def _restore_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def configured(format: str = "json", level: str = "info", secrets: tuple[str, ...] = ()) -> io.StringIO:
    stream = io.StringIO()
    logs.configure(level, format, secrets=secrets, stream=stream)
    return stream


def entries(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


# --- formats ---


def test_json_is_one_object_a_line() -> None:
    stream = configured()
    log.warning("local reply %d to %s", 503, "10.0.0.1", extra={"reason": "draining", "retry_after": 1})
    (entry,) = entries(stream)
    assert list(entry) == ["time", "level", "logger", "message", "reason", "retry_after"]
    assert entry["level"] == "warning"
    assert entry["logger"] == "orca_sidecar.test"
    assert entry["message"] == "local reply 503 to 10.0.0.1"
    assert (entry["reason"], entry["retry_after"]) == ("draining", 1)


def test_time_is_rfc_3339_in_utc() -> None:
    record = logging.makeLogRecord(
        {"created": 1_700_000_000.25, "msg": "x", "levelname": "INFO", "name": "n"}
    )
    assert json.loads(logs.JsonFormatter().format(record))["time"] == "2023-11-14T22:13:20.250Z"
    assert logs.TextFormatter().format(record) == "2023-11-14T22:13:20.250Z INFO    n: x"


def test_text_holds_the_same() -> None:
    stream = configured("text")
    log.error("cannot accept", extra={"errno": 24})
    assert stream.getvalue().endswith("Z ERROR   orca_sidecar.test: cannot accept errno=24\n")


def test_a_message_with_line_breaks_stays_one_record() -> None:
    stream = configured("text")
    log.info("peer said %s", "x\n2026-01-01T00:00:00Z INFO forged\x1b[31m\r")
    assert stream.getvalue().count("\n") == 1
    assert "x\\n2026" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
    stream = configured("json")
    log.info("peer said %s", "x\ny")
    assert entries(stream)[0]["message"] == "peer said x\ny"
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("format", ["json", "text"])
def test_exceptions_are_written_out(format: str) -> None:
    stream = configured(format)
    try:
        raise OSError("disk on fire")
    except OSError:
        log.exception("reload failed")
    text = stream.getvalue()
    assert "Traceback" in text
    assert "OSError: disk on fire" in text
    if format == "json":
        assert str(entries(stream)[0]["exception"]).endswith("OSError: disk on fire")
    else:
        assert all(line.startswith("    ") for line in text.splitlines()[1:])


def test_level_and_reconfiguration() -> None:
    first = configured(level="warning")
    log.info("not written")
    second = configured(level="debug")
    log.debug("written once")
    assert first.getvalue() == ""
    assert [entry["message"] for entry in entries(second)] == ["written once"]


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(KeyError):
        configured("xml")


def test_warnings_of_libraries_are_logged() -> None:
    stream = configured()
    warnings.warn("old call, token=abc", stacklevel=1)
    assert entries(stream)[0]["logger"] == "py.warnings"
    assert "abc" not in stream.getvalue()


def test_a_wrong_format_string_is_written_and_not_raised() -> None:
    stream = configured()
    log.info("%d of Bearer abcdef123456", "three")
    (entry,) = entries(stream)
    assert "three" in str(entry["message"])
    assert "abcdef123456" not in stream.getvalue()


def test_values_that_json_cannot_hold_are_written_as_text() -> None:
    stream = configured()
    log.info("x", extra={"rate": float("nan"), "peers": {"a"}, "nested": {"n": [1, None, True, b"raw"]}})
    (entry,) = entries(stream)
    assert entry["rate"] == "nan"
    assert entry["peers"] == ["a"]
    assert entry["nested"] == {"n": [1, None, True, "b'raw'"]}


def test_an_extra_field_cannot_replace_what_every_record_has() -> None:
    stream = configured()
    log.info("x", extra={"time": "never", "level": "none", "logger": "nobody"})
    (entry,) = entries(stream)
    assert entry["logger"] == "orca_sidecar.test"
    assert entry["level"] == "info"
    assert entry["time"] != "never"


# --- redaction ---

SECRET = "c2VjcmV0LXRva2Vu.abc_DEF-123"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2ln-bmF0_dXJl"
KEY = "MHcCAQEEIODI0XK9bGl7W1mZ"

SECRETIVE = [
    f"Authorization: Bearer {SECRET}",
    f"authorization:Bearer {SECRET}",
    f"Proxy-Authorization: Basic {SECRET}==",
    f"Authorization: Digest a=1, response={SECRET}",
    f"{{'Authorization': 'Bearer {SECRET}', 'Host': 'x'}}",
    f"[(b'Authorization', b'Basic {SECRET}')]",
    f'{{"authorization":"{SECRET}"}}',
    f"b'GET / HTTP/1.1\\r\\nAUTHORIZATION: {SECRET}\\r\\n'",
    f"token was bearer {SECRET}",
    f"bearer={SECRET}",
    f"Sec-WebSocket-Protocol: v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.{SECRET}, x",
    f"endpoint-load-metrics-request: TEXT secret={SECRET}",
    f"GET /api?access_token={SECRET}&watch=1",
    f"GET /oauth?token={SECRET}",
    f"https://user:{SECRET}@host/path",
    f"Cookie: session={SECRET}; b={SECRET}",
    f"Set-Cookie: session={SECRET}",
    f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n{KEY}\n-----END PRIVATE KEY-----",
    f"-----BEGIN RSA PRIVATE KEY-----\\n{SECRET}\\n-----END RSA PRIVATE KEY-----",
    f"-----BEGIN EC PRIVATE KEY-----\n{SECRET}\n{KEY}",
]


@pytest.mark.parametrize("text", SECRETIVE)
def test_what_looks_like_a_secret_is_taken_out(text: str) -> None:
    redacted = Redaction().text(f"before {text}")
    assert SECRET not in redacted
    assert KEY not in redacted
    assert redacted.startswith("before ")
    assert REDACTED in redacted


def test_a_json_web_token_is_recognised_by_its_looks() -> None:
    assert Redaction().text(f"got {JWT}!") == f"got {REDACTED}!"


def test_the_rest_of_a_text_stays() -> None:
    assert Redaction().text(f"GET /api?access_token={SECRET}&watch=1 200") == (
        f"GET /api?access_token={REDACTED}&watch=1 200"
    )
    assert Redaction().text(f"a base64url.bearer.authorization.k8s.io.{SECRET}, b") == (
        f"a base64url.bearer.authorization.k8s.io.{REDACTED}, b"
    )


@pytest.mark.parametrize(
    "text",
    [
        "a bearer token is missing",
        "authorization failed",
        "CN=front-proxy-client signed by the client CA",
        "-----BEGIN CERTIFICATE-----",
        "cannot read secret file /etc/kubernetes/pki/x.key",
        "https://127.0.0.1:6443/readyz",
        "sampled 3 tokens",
        "monkeyjar.example.com does not resolve",
    ],
)
def test_ordinary_lines_are_left_alone(text: str) -> None:
    assert Redaction().text(text) == text


def test_texts_are_cut_at_a_bounded_length() -> None:
    assert len(Redaction().text("eyJ" * 100_000)) == 16 * 1024 + 1


def test_given_secrets_are_taken_out_wherever_they_stand() -> None:
    stream = configured(secrets=("hunter2 swordfish", ""))
    log.info("value was [hunter2 swordfish]")
    assert entries(stream)[0]["message"] == f"value was [{REDACTED}]"


@pytest.mark.parametrize("format", ["json", "text"])
@pytest.mark.parametrize("text", SECRETIVE)
def test_no_way_into_a_record_gets_around_redaction(format: str, text: str) -> None:
    stream = configured(format)
    log.info(text)
    log.info("argument %s", text)
    log.info("argument %(it)s", {"it": text})
    log.info("object %r", [text])
    log.info("field", extra={"detail": text, "deep": {"list": [text]}, "bytes": text.encode()})
    log.info("name", extra={"token": SECRET, "headers": {"Authorization": SECRET}})
    log.info("stack", stack_info=True)
    try:
        raise ValueError(text)
    except ValueError as error:
        log.exception("exception")
        log.info("exception as an argument: %s", error)
        log.info("exception as a field", extra={"error": error})
    logging.getLogger("asyncio").error(text)
    written = stream.getvalue()
    assert SECRET not in written
    assert KEY not in written
    assert written.count("orca_sidecar.test") >= 10


# --- rate limit ---


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_key_gets_so_many_lines_an_interval() -> None:
    stream, clock = configured(), Clock()
    limited = RateLimited(log, lines=2, interval=10.0, clock=clock)
    for number in range(5):
        limited.warning("handshake", "failed %d", number)
    clock.now += 9.9
    limited.warning("handshake", "failed %d", 5)
    assert [entry["message"] for entry in entries(stream)] == ["failed 0", "failed 1"]
    clock.now += 0.1
    for number in range(6, 9):
        limited.error("handshake", "failed %d", number)
    messages = entries(stream)[2:]
    assert [entry["message"] for entry in messages] == ["failed 6", "failed 7"]
    assert [entry.get("suppressed") for entry in messages] == [4, None]
    assert [entry["level"] for entry in messages] == ["error", "error"]


def test_keys_do_not_share() -> None:
    stream = configured()
    limited = RateLimited(log, lines=1, clock=Clock())
    limited.info("a", "first of a")
    limited.info("b", "first of b")
    limited.info("a", "second of a")
    assert [entry["message"] for entry in entries(stream)] == ["first of a", "first of b"]


def test_what_the_level_leaves_out_costs_no_line() -> None:
    stream = configured(level="error")
    limited = RateLimited(log, lines=1, clock=Clock())
    limited.info("a", "not written")
    limited.error("a", "written")
    (entry,) = entries(stream)
    assert entry["message"] == "written"
    assert "suppressed" not in entry


def test_limited_lines_are_redacted_as_well() -> None:
    stream = configured()
    RateLimited(log).error("a", "Bearer %s", SECRET)
    assert SECRET not in stream.getvalue()
