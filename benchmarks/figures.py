"""Figures of pages made again: every marked block of commands is run, and what it prints put in its place.

python benchmarks/figures.py                     all pages
python benchmarks/figures.py docs/checks.md      some of them
python benchmarks/figures.py --check             writes nothing; exits 1 where a page shows something else

`<!-- figures -->` in the line above a console block marks it; `<!-- figures problem.yaml=examples/a.yaml -->` copies
files first, and the word `stderr` shows both outputs. A block without outputs is run and stays without. The marked
blocks of a page run one after the other in a folder with links to everything in this checkout, so that later commands
read what earlier ones wrote. Wall times stay as they stand on the page, and lines that it leaves out (`... (18 more)`)
stay left out.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from planner.documents.files import write_text_atomic

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^<!-- figures(?P<words>[^>]*)-->\n```console\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT = "$ "
LEFT_OUT = re.compile(r"^\s*\.\.\. \((\d+) more\)$")
INSTALLED = "make -o .venv/installed -o .venv/installed-dev"  # a run of a page installs nothing
BIN = ".venv/bin/"  # in front of the commands that make prints
WALL_TIME = re.compile(r"^solved in .*$", re.MULTILINE)
FAILED = 2  # exit codes from here on are errors; 0 and 1 are answers

Run: TypeAlias = Callable[[str, Path, bool], str]  # a command, where, whether with errors -> what it prints


@dataclass(frozen=True, slots=True)
class Shown:
    """A command of a page with what the page shows of its output, and the line of its block that it begins in."""

    command: str
    output: str
    row: int = 0


def commands_of(body: str, prompt: str = PROMPT) -> list[Shown]:
    """The commands of a block, each with the lines up to the next.

    Without a prompt every line is one that is not empty, indented or a comment. A command goes on in the next line
    behind a backslash or within quotes.
    """
    commands: list[Shown] = []
    lines, row = body.splitlines(keepends=True), 0
    while row < len(lines):
        first, line = row, lines[row]
        row += 1
        if not (line.startswith(prompt) if prompt else line[:1].strip("# \n")):
            if commands:
                commands[-1] = replace(commands[-1], output=commands[-1].output + line)
            continue
        while row < len(lines) and _goes_on(line):
            line += lines[row]
            row += 1
        commands.append(Shown(line.removesuffix("\n"), "", first))
    return commands


def _goes_on(command: str) -> bool:
    if command.endswith("\\\n"):
        return True
    try:
        shlex.split(command, comments=True)
    except ValueError:  # a quotation without an end
        return True
    return False


def merged(shown: str, printed: str) -> str:
    """What was printed, with the wall times and omissions of what the page shows."""
    times = WALL_TIME.findall(shown)
    if times:
        printed = WALL_TIME.sub(lambda _: times[0], printed)
    kept, lines = shown.splitlines(), printed.splitlines()
    for row, line in enumerate(kept):
        left_out = LEFT_OUT.match(line)
        if left_out:
            lines[row : row + int(left_out[1])] = [line]
    return "".join(f"{line}\n" for line in lines)


def remade(page: str, folder: Path, run: Run) -> str:
    """The page with the outputs of its marked blocks as `run` prints them in `folder`."""

    def remade_block(match: re.Match[str]) -> str:
        words = match["words"].split()
        for copy in (word for word in words if "=" in word):
            name, source = copy.split("=", 1)
            shutil.copy(ROOT / source, folder / name)
        block = commands_of(match["body"])
        printed = [run(shown.command.removeprefix("$ "), folder, "stderr" in words) for shown in block]
        if not any(shown.output for shown in block):
            return match[0]
        pairs = zip(block, printed, strict=True)
        body = "".join(f"{shown.command}\n{merged(shown.output, output)}" for shown, output in pairs)
        return f"<!-- figures{match['words']}-->\n```console\n{body}```"

    return BLOCK.sub(remade_block, page)


def environment_of_pages() -> dict[str, str]:
    """The environment that commands of pages run in: that of this interpreter, without settings of the planner."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PLANNER_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return environment


def run_in_shell(command: str, folder: Path, both: bool) -> str:
    """What a command prints in a folder, with what it says of errors where `both`; exits where it fails."""
    environment = environment_of_pages()
    errors = subprocess.STDOUT if both else subprocess.PIPE
    command = re.sub("^make ", f"{INSTALLED} ", command)
    run = subprocess.run(
        command, shell=True, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=errors, check=False
    )
    if run.returncode >= FAILED:
        raise SystemExit(f"{command}\n{run.stdout}{run.stderr or ''}exit {run.returncode}")
    return run.stdout.replace(BIN, "")


def checkout_in(folder: Path) -> Path:
    """Links to everything in this checkout, in an empty folder."""
    for entry in ROOT.iterdir():
        if entry.name not in (".git", "plan.json", "plan.checks.json"):
            (folder / entry.name).symlink_to(entry)
    return folder


def pages() -> tuple[Path, ...]:
    """Every page that a reader is shown: the front page, then those of the site."""
    return (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


def pages_with_figures() -> Iterator[Path]:
    """Every page with a marked block."""
    for page in pages():
        if BLOCK.search(page.read_text(encoding="utf-8")):
            yield page


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the blocks of pages, and writes or compares them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page shows something else")
    given = parser.parse_args(arguments)
    stale = 0
    for page in given.pages or pages_with_figures():
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            now = remade(text, checkout_in(Path(folder)), run_in_shell)
        same = now == text
        stale += not same
        print(f"{page.resolve().relative_to(ROOT)}: {'as it was' if same else 'differs' if given.check else 'written'}")
        if not same and not given.check:
            write_text_atomic(page, now)
    return 1 if stale and given.check else 0


if __name__ == "__main__":
    raise SystemExit(main())
