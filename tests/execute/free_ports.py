"""A port for the ranks of a test to meet at."""

import socket


def free_port() -> int:
    """One that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
