"""The real runs: Envoy or HAProxy, three sidecars, three stand-in API servers, on loopback."""
