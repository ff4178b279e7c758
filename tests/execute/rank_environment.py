"""What the ranks of a test need of the machine: modules of this folder, and a port to meet at."""

import importlib.util
import os
import socket
from pathlib import Path

PYTHON_PATH = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
ENVIRONMENT = {"PYTHONPATH": PYTHON_PATH}
HAS_TORCH = importlib.util.find_spec("torch") is not None


def free_port() -> int:
    """One that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
