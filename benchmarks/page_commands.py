"""Every command of every page is run, in the order of its page: a page that names a missing file or option fails.

python benchmarks/page_commands.py                     all pages, two at a time
python benchmarks/page_commands.py docs/emit.md        some of them

Blocks of `sh`, `bash` and `console` are read. A page's commands run in a folder of their own with a copy of `examples/`
and `docs/` and links to the rest of the checkout, so that later commands read what earlier ones wrote. `planner solve`
without a `--level` runs with `--level static`, which answers in seconds, and `make demo` as the lines of its rule. A
plan of the same problem and flags is solved once for all pages. What cannot run is counted with its reason: by rule
(`Rule`), or by an annotation in a line above the block,

    <!-- commands: problem.yaml=examples/a.yaml; rows.csv=../shared/rows.csv; 2 4: need a GPU -->

which copies files first, and gives the reason why commands 2 and 4 of the block are left out. `<!-- commands: is a.yaml
-->` above a block of any language makes it the file that later commands read. A command that takes more than
`CPU_LIMIT_S` fails; so does one that exits with an error, or an annotation of a command that the block does not have.
Exit code 1 where a command fails.
"""

import argparse
import hashlib
import os
import re
import resource
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from figures import FAILED, PROMPT, ROOT, Shown, checkout_in, commands_of, environment_of_pages, pages

CPU_LIMIT_S = 30  # of one command; all pages together are to take 5 minutes on two cores
AT_ONCE = 2  # pages
SLOWEST = 10  # commands that are listed at the end
FENCED = re.compile(
    r"(?:^<!-- commands: (?P<notes>[^>]*) -->\n)?(?:^<!-- figures(?P<words>[^>]*)-->\n)?"
    r"^```(?P<language>\w+)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
SHELLS = ("sh", "bash", "console")
SOLVE = re.compile(r"^planner solve (?!.*--level )")
STATIC = "planner solve --level static "
PLANNED = re.compile(
    r"planner solve (?P<before>[^|;&>$]*?)(?P<problem>\S+\.yaml) ?(?P<after>[^|;&>$]*?) ?-o (?P<plan>\S+)"
)
COPIED = ("examples", "docs")  # that commands may write into


@dataclass(frozen=True, slots=True)
class Rule:
    """Commands that are not run wherever they stand, and why."""

    pattern: re.Pattern[str]
    why: str


RULES = (
    Rule(re.compile(r"^(?!planner |python |make )"), "a command of another program"),
    Rule(re.compile(r"^make (?!demo$)"), "a make target: minutes, and it installs"),
    Rule(re.compile(r"\.\./shared"), "reads measured data outside the repository"),
    Rule(re.compile(r"--level (engine|execute)(?!.*(--report|--device cpu))"), "needs a GPU or an engine"),
    Rule(re.compile(r"^python benchmarks/(?!.*--quick|trust)"), "a benchmark without --quick"),
    Rule(re.compile(r"(?<=\s)[A-Z]{4,}(?=\s|$)"), "a placeholder in the place of a file"),
)


@dataclass(frozen=True, slots=True)
class PageCommand:
    """A command with its line, and what stands in the way of running it."""

    line: int
    text: str
    skipped: str | None


@dataclass(slots=True)
class Block:
    """The commands of a block, files to copy into place first, and one that the block itself is."""

    commands: list[PageCommand]
    copies: dict[str, str] = field(default_factory=dict)
    file: tuple[str, str] | None = None


def _without_comment(command: str) -> str:
    return re.sub(r"\s+#.*$", "", command)


@dataclass(slots=True)
class Notes:
    """What an annotation says: files to copy, reasons by the number of a command, the file that the block is."""

    copies: dict[str, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    file: str | None = None


def _notes(notes: str, words: str) -> Notes:
    """The notes of an annotation, with the copies that a mark of figures names."""
    read = Notes(dict(word.split("=", 1) for word in words.split() if "=" in word))
    for note in filter(None, (part.strip() for part in notes.split(";"))):
        numbers, colon, reason = note.partition(": ")
        if colon:
            read.reasons |= dict.fromkeys(map(int, numbers.split()), reason)
        elif note.startswith("is "):
            read.file = note.removeprefix("is ")
        else:
            name, source = note.split("=", 1)
            read.copies[name] = source
    return read


def _why_skipped(command: str) -> str | None:
    return next((rule.why for rule in RULES if rule.pattern.search(command)), None)


def blocks_of(page: str) -> Iterator[Block]:
    """The blocks of commands of a page, in order.

    Raises:
        ValueError: an annotation gives a reason for a command that its block does not have.
    """
    for match in FENCED.finditer(page):
        notes = _notes(match["notes"] or "", match["words"] or "")
        body, first = match["body"], page.count("\n", 0, match.start("body")) + 1
        if notes.file:
            yield Block([], notes.copies, (notes.file, body))
        elif match["language"] in SHELLS:
            prompt = PROMPT if match["language"] == "console" else ""
            yield Block(_commands(commands_of(body, prompt), first, notes), notes.copies)


def _commands(shown: Sequence[Shown], first: int, notes: Notes) -> list[PageCommand]:
    if set(notes.reasons) - set(range(1, len(shown) + 1)):
        raise ValueError(f"line {first}: reasons for commands {sorted(notes.reasons)}, the block has {len(shown)}")
    texts = [_without_comment(command.command.removeprefix(PROMPT)) for command in shown]
    return [
        PageCommand(first + command.row, text, notes.reasons.get(number) or _why_skipped(text))
        for number, (command, text) in enumerate(zip(shown, texts, strict=True), 1)
    ]


def _folder_in(parent: Path) -> Path:
    folder = checkout_in(parent)
    for name in COPIED:
        (folder / name).unlink()
        shutil.copytree(ROOT / name, folder / name)
    return folder


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))


def run_as(command: str) -> str:
    """What is run for a command of a page: without a search that simulates, and without installing."""
    if command == "make demo":
        recipe = re.search(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert recipe
        lines = [line.strip().removeprefix("$(BIN)/") for line in recipe[1].splitlines()]
        return " && ".join(SOLVE.sub(STATIC, line) for line in lines)
    return SOLVE.sub(STATIC, command)


@dataclass(frozen=True, slots=True)
class SolvedOnce:
    """Where the plan of a `planner solve` goes, and where pages keep it that solve the same problem alike."""

    plan: Path
    kept: Path

    @classmethod
    def of(cls, command: str, folder: Path, shelf: Path) -> "SolvedOnce | None":
        """None for other commands, and where the output is more than a plan."""
        match = PLANNED.fullmatch(run_as(command))
        if match is None or not (folder / match["problem"]).is_file():
            return None
        digest = hashlib.sha256((folder / match["problem"]).read_bytes())
        flags = " ".join(f"{match['before']} {match['after']}".replace("--level static", "").split())
        digest.update(flags.encode())
        return cls(folder / match["plan"], shelf / digest.hexdigest())

    def take(self) -> bool:
        """Puts the kept plan into its place; whether there is one."""
        if not self.kept.exists():
            return False
        shutil.copy(self.kept, self.plan)
        return True

    def keep(self) -> None:
        """Keeps the plan, in one step."""
        if self.plan.is_file():
            beside = self.kept.with_suffix(f".{os.getpid()}")
            shutil.copy(self.plan, beside)
            beside.rename(self.kept)


def error_of(command: str, folder: Path, shelf: Path) -> str | None:
    """What a command says where it fails, None where it answers; plans are solved once for all pages."""
    once = SolvedOnce.of(command, folder, shelf)
    if once and once.take():
        return None
    error = _error_of_run(command, folder)
    if once and error is None:
        once.keep()
    return error


def _error_of_run(command: str, folder: Path) -> str | None:
    run = subprocess.run(
        ["bash", "-c", run_as(command)],
        cwd=folder,
        env=environment_of_pages(),
        text=True,
        capture_output=True,
        check=False,
        preexec_fn=_bounded,
    )
    if 0 <= run.returncode < FAILED and "Traceback" not in run.stderr:
        return None
    said = run.stderr.strip() or run.stdout.strip()
    ended = f"ended at {CPU_LIMIT_S} CPU-s" if run.returncode < 0 else f"exit {run.returncode}"
    return f"{said[-2000:]}\n{ended}"


@dataclass(slots=True)
class PageRun:
    """What came of the commands of a page: CPU seconds of those run, errors, and reasons of the others."""

    name: str
    cpu_s: dict[str, float] = field(default_factory=dict)  # by `page:line: command`
    failures: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)  # `page:line: command`, reason


def run_page(page: Path, shelf: Path) -> PageRun:
    """Runs the commands of a page in a folder of their own; `shelf` has the plans that pages share."""
    outcome = PageRun(page.resolve().relative_to(ROOT.resolve()).as_posix())
    with tempfile.TemporaryDirectory() as parent:
        folder = _folder_in(Path(parent))
        for block in blocks_of(page.read_text(encoding="utf-8")):
            if block.file:
                (folder / block.file[0]).write_text(block.file[1], encoding="utf-8")
            absent = [source for source in block.copies.values() if not (ROOT / source).exists()]
            for target, source in block.copies.items():
                if source not in absent:
                    (folder / target).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / source, folder / target)
            for command in block.commands:
                place = f"{outcome.name}:{command.line}: {command.text}"
                why = command.skipped or (f"{', '.join(absent)} is not here" if absent else None)
                if why:
                    outcome.skipped.append((place, why))
                    continue
                before = _cpu_s()
                error = error_of(command.text, folder, shelf)
                outcome.cpu_s[place] = _cpu_s() - before
                if error:
                    outcome.failures.append(f"{place}\n{error}")
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the commands of pages, and says what was not run and what failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path)
    given = parser.parse_args(arguments)
    begin, outcomes = time.monotonic(), []
    with tempfile.TemporaryDirectory() as shelf, ProcessPoolExecutor(AT_ONCE) as pool:
        for outcome in pool.map(partial(run_page, shelf=Path(shelf)), given.pages or pages()):
            outcomes.append(outcome)
            for place, why in outcome.skipped:
                print(f"  {place}\n    not run: {why}")
            spent = f"{len(outcome.cpu_s)} run, {len(outcome.failures)} failed, {sum(outcome.cpu_s.values()):.0f} CPU-s"
            print(f"{outcome.name}: {spent}", *outcome.failures, sep="\n", flush=True)
    return _summed_up(outcomes, time.monotonic() - begin)


def _summed_up(outcomes: Sequence[PageRun], wall_s: float) -> int:
    reasons = Counter(why for outcome in outcomes for _, why in outcome.skipped)
    for why, count in reasons.most_common():
        print(f"not run: {count:3} {why}")
    cpu_s = {place: spent for outcome in outcomes for place, spent in outcome.cpu_s.items()}
    for place, spent in sorted(cpu_s.items(), key=lambda item: -item[1])[:SLOWEST]:
        print(f"{spent:5.1f} CPU-s {place}")
    failed = sum(len(outcome.failures) for outcome in outcomes)
    counts = f"{len(cpu_s)} commands run, {failed} failed, {reasons.total()} not run"
    print(f"{counts}: {sum(cpu_s.values()):.0f} CPU-s, {wall_s:.0f} s")
    return 1 if failed else 0


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    raise SystemExit(main())
