"""orca-sidecar: load-aware balancing for kube-apiserver."""

__version__ = "0.1.0"
