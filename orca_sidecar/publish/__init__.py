"""The ways out for load reports besides the response header: gRPC out of band, HAProxy's agent-check."""

import os

# gRPC's core writes a line of its own to stderr for every handshake that fails, so every port scan; it can
# only be told otherwise before it is loaded.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
