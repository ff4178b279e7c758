"""Object files of compiled loops on disk, named by all that they depend on; a file that is not whole counts as none."""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

MOST_KEPT = 16
"""Object files of a function: of several types of its arguments, and of checkouts that share a folder."""


class Code(NamedTuple):
    """An object file and the name of its function."""

    symbol: str
    text: bytes

    @property
    def seal(self) -> bytes:
        """By which a file is known to be whole."""
        return hashlib.sha256(self.symbol.encode() + self.text).hexdigest().encode()


def place_of(function: str, modules: Sequence[str], types: Sequence[str]) -> Path:
    """Of the code of a function of the first of these modules, by all their sources, types, processor and LLVM."""
    import llvmlite
    from llvmlite import binding

    features = ""  # where LLVM does not know those of this processor, as in numba.core.codegen
    with suppress(RuntimeError):
        features = binding.get_host_cpu_features().flatten()
    words = (llvmlite.__version__, binding.get_host_cpu_name(), features, *types)
    known = hashlib.sha256("\n".join(words).encode())
    sources = [_source(module) for module in modules]
    for source in (*sorted(Path(__file__).parent.glob("*.py")), *sources):
        known.update(source.read_bytes())
    return _folder(sources[0].parent) / f"{function}-{known.hexdigest()[:24]}.o"


def _source(module: str) -> Path:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def _folder(sources: Path) -> Path:
    """Where numba's environment says, else beside the sources where that can be written, else the user's cache."""
    if "NUMBA_CACHE_DIR" in os.environ:
        return Path(os.environ["NUMBA_CACHE_DIR"])
    beside = sources / "__pycache__"
    writable = os.access(beside if beside.exists() else sources, os.W_OK)
    return beside if writable else Path(os.path.expanduser("~")) / ".cache" / "planner"


def read(place: Path) -> Code | None:
    """What was kept there; None where nothing was, or not whole."""
    try:
        seal, symbol, text = place.read_bytes().split(b"\n", 2)
    except (OSError, ValueError):
        return None
    code = Code(symbol.decode(errors="replace"), text)
    return code if code.seal == seal else None


def write(place: Path, code: Code) -> None:
    """Keeps it where that is possible; no process reads what another has half written.

    Of the same function, code of older sources, types and processors is dropped but for the newest.
    """
    part = place.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(b"\n".join((code.seal, code.symbol.encode(), code.text)))
        part.replace(place)
        function = place.name.rpartition("-")[0]
        alike = (path for path in place.parent.glob(f"{function}-*.o") if path.name.rpartition("-")[0] == function)
        for old in sorted(alike, key=lambda path: path.stat().st_mtime, reverse=True)[MOST_KEPT:]:
            old.unlink(missing_ok=True)
