"""Local replies: a `metav1.Status` that every client of kube-apiserver understands."""

from __future__ import annotations

import json

import h11
import pytest

from orca_sidecar.core.errors import LocalReplyReason, RequestError, local_reply

EXPECTED = {
    LocalReplyReason.BAD_REQUEST: (400, "BadRequest"),
    LocalReplyReason.HEADERS_TOO_LARGE: (431, "RequestEntityTooLarge"),
    LocalReplyReason.HEADER_TIMEOUT: (408, "Timeout"),
    LocalReplyReason.VERSION_NOT_SUPPORTED: (505, "BadRequest"),
    LocalReplyReason.METHOD_NOT_ALLOWED: (405, "MethodNotAllowed"),
    LocalReplyReason.IDENTITY_REFUSED: (401, "Unauthorized"),
    LocalReplyReason.TOO_MANY_CONNECTIONS: (503, "ServiceUnavailable"),
    LocalReplyReason.UPSTREAM_UNREACHABLE: (503, "ServiceUnavailable"),
    LocalReplyReason.UPSTREAM_CLOSED: (502, "InternalError"),
    LocalReplyReason.MALFORMED_RESPONSE: (502, "InternalError"),
    LocalReplyReason.DRAINING: (503, "ServiceUnavailable"),
}


@pytest.mark.parametrize("reason", list(LocalReplyReason))
def test_every_reason_is_a_whole_status(reason: LocalReplyReason) -> None:
    code, kube_reason = EXPECTED[reason]
    reply = local_reply(reason, 'it "broke"')
    assert (reply.reason, reply.code) == (reason, code)
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(reply.head + b"\r\n" + reply.body)
    response, data, end = client.next_event(), client.next_event(), client.next_event()
    assert isinstance(response, h11.Response)
    assert isinstance(data, h11.Data)
    assert isinstance(end, h11.EndOfMessage)
    assert response.status_code == code
    headers = dict(response.headers)
    assert headers[b"content-type"] == b"application/json"
    status = json.loads(bytes(data.data))
    assert status["kind"] == "Status"
    assert status["apiVersion"] == "v1"
    assert status["status"] == "Failure"
    assert status["code"] == code
    assert status["reason"] == kube_reason
    assert status["message"] == 'orca-sidecar: it "broke"'
    retry = headers.get(b"retry-after")
    assert status.get("details", {}).get("retryAfterSeconds") == (int(retry) if retry else None)


@pytest.mark.parametrize("reason", [LocalReplyReason.UPSTREAM_CLOSED, LocalReplyReason.MALFORMED_RESPONSE])
def test_what_may_have_been_carried_out_invites_no_retry(reason: LocalReplyReason) -> None:
    """client-go repeats any request, a write too, whose 429 or 5xx answer has a Retry-After."""
    assert b"Retry-After" not in local_reply(reason, "x").head


def test_a_request_error_knows_its_answer() -> None:
    assert RequestError("x").reason is LocalReplyReason.BAD_REQUEST
    assert RequestError("x", LocalReplyReason.HEADERS_TOO_LARGE).reason is LocalReplyReason.HEADERS_TOO_LARGE
