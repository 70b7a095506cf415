"""The bench suite: what the proxy costs, beside its peers, on this machine (`bench/run.py`)."""
