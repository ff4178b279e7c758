"""Pages that a program writes: written anew, or compared with what it would write."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from planner.documents.files import write_text_atomic

ROOT = Path(__file__).parent.parent


def write_or_check(path: Path, page: Callable[[], str], about: str | None, arguments: Sequence[str] | None) -> int:
    """Writes the page, or with `--check` compares it; 1 where it says something else."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the page says something else")
    given = parser.parse_args(arguments)
    text = page()
    same = path.is_file() and path.read_text(encoding="utf-8") == text
    print(f"{path.relative_to(ROOT)}: {'as it was' if same else 'differs' if given.check else 'written'}")
    if not same and not given.check:
        write_text_atomic(path, text)
    return 1 if given.check and not same else 0
