"""A first look in one command: real sidecars and a real Envoy before stand-in API servers."""
