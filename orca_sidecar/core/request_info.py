"""What a request asks of kube-apiserver: verb, resource, and what follows for timeouts, retries and limits.

The rules are those of `NewRequestInfo` in k8s.io/apiserver (pkg/endpoints/request/requestinfo.go) with
kube-apiserver's prefixes (`api`, without a group, and `apis`), and of the long-running check it is started
with. They are followed to the letter, because a request that one side holds for a watch and the other for a
list would be counted, timed and drained wrongly. Only the first line of a request is looked at, and nothing
here changes it.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

VERBS: Final[tuple[str, ...]] = (
    # of resources; "get", "patch" and "delete" are methods as well
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "proxy",
    # of anything else: the method in lower case
    "head",
    "post",
    "put",
    "options",
    "connect",
    "trace",
    "other",
)
"""Every value of `RequestInfo.verb`, so that it can be a metric's label. Anything else is "other"."""


class RequestInfo(NamedTuple):
    """One classified request. Text fields are percent-decoded; bytes that are not UTF-8 show as U+FFFD."""

    verb: str
    verb_index: int
    """Index of `verb` in `VERBS`."""
    is_resource: bool
    api_group: str
    """Empty for the core group and for what is not a resource."""
    resource: str
    subresource: str
    namespace: str
    name: str
    long_running: bool
    """Watch, proxy, attach, exec, log, portforward, profiles: no time limit, not in kube's in-flight."""
    read_only: bool
    """Counted against `--max-requests-inflight`, not the mutating limit: get, list, watch; HEAD as well."""
    health_probe: bool
    """GET or HEAD of /healthz, /livez, /readyz or a check below them."""
    retry_safe: bool
    """As far as method and path tell, it may be sent twice. Whether it is an upgrade is not known here."""


_INDEX: Final = {verb: index for index, verb in enumerate(VERBS)}
_OTHER: Final = _INDEX["other"]
_RESOURCE_VERBS: Final = {
    b"POST": "create",
    b"GET": "get",
    b"HEAD": "get",
    b"PUT": "update",
    b"PATCH": "patch",
    b"DELETE": "delete",
}
_LONG_RUNNING_VERBS: Final = frozenset({"watch", "proxy"})
_LONG_RUNNING_SUBRESOURCES: Final = frozenset({"attach", "exec", "proxy", "log", "portforward"})
_READ_ONLY_VERBS: Final = frozenset({"get", "list", "watch", "head"})
_UNREPEATABLE_SUBRESOURCES: Final = frozenset({"attach", "exec", "proxy", "portforward"})
_HEALTH_PATHS: Final = frozenset({"healthz", "livez", "readyz"})

# Go's url.ParseRequestURI: a scheme, then perhaps an authority; the path begins at the next slash.
_ABSOLUTE_FORM: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*:(?://[^/]*)?")
# Bounds the work a request can cause. Names are at most 253 characters long, so what decides is far within.
_PATH_BYTES: Final = 4096
# api(s), group, version, special verb, "namespaces", namespace, resource, name, subresource: no more is read.
_PATH_PARTS: Final = 9
_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
# Go's url.ParseQuery reads nothing of a longer query.
_QUERY_PARAMETERS: Final = 10_000


def classify(method: bytes, target: bytes) -> RequestInfo:
    """Classify a request by its method and its target, both exactly as sent.

    Never fails: what kube-apiserver refuses (a bad percent-escape, `/api/v1/watch` without a resource) is
    classified as far as it can be read.
    """
    raw_path, _, query = target.partition(b"?")
    if raw_path[:1] != b"/":
        raw_path = _path_of_absolute_form(raw_path)
    if len(raw_path) > _PATH_BYTES:
        raw_path = raw_path[:_PATH_BYTES]
    if b"%" in raw_path:
        raw_path = unquote_to_bytes(raw_path)  # before splitting: an escaped slash does separate
    path = raw_path.decode("utf-8", "replace")
    parts = path.strip("/").split("/", _PATH_PARTS)

    first = parts[0]
    if (first == "api" and len(parts) >= 3) or (first == "apis" and len(parts) >= 4):
        return _resource(method, parts, query)

    verb = method.decode("latin-1").lower()
    index = _INDEX.get(verb, _OTHER)
    safe_method = method == b"GET" or method == b"HEAD"
    return RequestInfo(
        VERBS[index],
        index,
        False,
        "",
        "",
        "",
        "",
        "",
        verb in _LONG_RUNNING_VERBS or path.startswith("/debug/pprof/"),
        verb in _READ_ONLY_VERBS,
        safe_method and first in _HEALTH_PATHS and path.startswith(first, 1),
        safe_method,
    )


def _resource(method: bytes, parts: list[str], query: bytes) -> RequestInfo:
    group = ""
    rest = parts[2:]  # after the prefix and the version
    if parts[0] == "apis":
        group = parts[1]
        del rest[0]

    verb = _RESOURCE_VERBS.get(method, "")
    special = rest[0]
    if special == "watch" or special == "proxy":
        if len(rest) < 2:  # kube-apiserver answers 500
            verb = method.decode("latin-1").lower()
            return _resource_info(method, verb, group, "", "", "", "")
        verb = special
        del rest[0]

    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if (
            len(rest) > 2 and rest[2] != "status" and rest[2] != "finalize"
        ):  # those are a namespace's subresources
            del rest[:2]

    count = len(rest)
    name = rest[1] if count > 1 else ""
    subresource = rest[2] if count > 2 and verb != "proxy" else ""
    if not name:
        if verb == "get":
            watch, name = _list_options(query) if query else (False, "")
            verb = "watch" if watch else "list"
        elif verb == "delete":
            verb = "deletecollection"
    return _resource_info(method, verb, group, rest[0], subresource, namespace, name)


def _resource_info(
    method: bytes, verb: str, group: str, resource: str, subresource: str, namespace: str, name: str
) -> RequestInfo:
    index = _INDEX.get(verb, _OTHER)
    return RequestInfo(
        VERBS[index],
        index,
        True,
        group,
        resource,
        subresource,
        namespace,
        name,
        verb in _LONG_RUNNING_VERBS or subresource in _LONG_RUNNING_SUBRESOURCES,
        verb in _READ_ONLY_VERBS,
        False,
        (method == b"GET" or method == b"HEAD")
        and verb != "proxy"
        and subresource not in _UNREPEATABLE_SUBRESOURCES,
    )


def _path_of_absolute_form(target: bytes) -> bytes:
    prefix = _ABSOLUTE_FORM.match(target)
    path = target[prefix.end() :] if prefix else b""
    return path if path[:1] == b"/" else b""


def _list_options(query: bytes) -> tuple[bool, str]:
    """`watch` and the name that `fieldSelector` pins, of a request without a name in its path.

    The first value of a parameter counts, and any value of `watch` but "false" and "0" means yes
    (apimachinery's Convert_Slice_string_To_bool). Other list options are not read, so a name is given even
    where one of them is malformed and kube-apiserver would answer 400.
    """
    watch: bytes | None = None
    selector: bytes | None = None
    pairs = query.split(b"&", _QUERY_PARAMETERS)
    if len(pairs) > _QUERY_PARAMETERS:
        return False, ""
    for pair in pairs:
        key, _, value = pair.partition(b"=")
        if b"%" in key or b"+" in key:
            key = _unescape(key)
        if key == b"watch" or key == b"fieldSelector":
            if b";" in pair or _BAD_ESCAPE.search(pair):  # Go leaves such a parameter out
                continue
            if key == b"watch":
                watch = _unescape(value) if watch is None else watch
            elif selector is None:
                selector = _unescape(value)
    is_watch = watch is not None and watch.lower() not in (b"false", b"0")
    return is_watch, _selected_name(selector.decode("utf-8", "replace")) if selector else ""


def _unescape(text: bytes) -> bytes:
    """Undo form encoding (Go's url.QueryUnescape)."""
    return unquote_to_bytes(text.replace(b"+", b" ")) if b"%" in text or b"+" in text else text


_TERM: Final = re.compile(r"(?:[^,\\]|\\.?)+", re.DOTALL)
_REQUIREMENT: Final = re.compile(
    r"(?P<field>(?:[^=!]|!(?!=))*)(?P<operator>!=|==?)(?P<value>(?:[^\\,=]|\\[\\,=])*)", re.DOTALL
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def _selected_name(selector: str) -> str:
    """The X of `metadata.name=X` in a field selector, or "" (apimachinery's fields.ParseSelector).

    One malformed term makes the whole selector void, as does a name that cannot be a segment of a path.
    """
    if "metadata.name" not in selector:
        return ""
    names: list[str] = []
    for term in sorted(_TERM.findall(selector)):  # apimachinery sorts, then takes the first
        requirement = _REQUIREMENT.fullmatch(term)
        if requirement is None:
            return ""
        if requirement["field"] == "metadata.name" and requirement["operator"] != "!=":
            names.append(_ESCAPED.sub(r"\1", requirement["value"]))
    name = names[0] if names else ""
    return "" if name in (".", "..") or "/" in name or "%" in name else name
