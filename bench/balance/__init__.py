"""The balance bench: which balancer, told what by whom, spreads load best over API servers.

Every scenario is run twice with the same requests: by real programs (Envoy, HAProxy, the sidecars, stand-in
API servers of modelled capacity) and by a discrete-event model of them, which then also covers what would
take too long for real.
"""
