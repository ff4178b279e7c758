"""Commands that start an engine, told apart from all others by the program that they name."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from planner.engines.serving.registry import SERVING_ENGINES
from planner.errors import PlannerError
from planner.importing.images import EngineRelease, release_in
from planner.importing.shell.follow import SHELLS, Command
from planner.importing.shell.syntax import broken_lines, parse_shell
from planner.importing.shell.worlds import World, worlds
from planner.importing.values import mark

MAX_NESTING = 4
_MODULES = {module: engine.name for engine in SERVING_ENGINES.values() for module in engine.modules}
_REMOTE = frozenset({"ssh", "pdsh", "clush", "tmux", "screen", "parallel", "xargs", "eval", "su"})


@dataclass(frozen=True)
class Launch:
    """A program with its words: `before` stand ahead of it (a launcher's own flags), `files` can be read beside it."""

    engine: str
    words: tuple[str, ...]
    before: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)  # of the script around it
    files: Mapping[str, str] = field(default_factory=dict)
    program: str = ""  # of those that train
    image: str = ""  # of the container around it

    @property
    def release(self) -> EngineRelease | None:
        """The engine's release that its image names: the one that its own words start it in goes first."""
        return release_in(self.engine, (*(word.partition("=")[2] or word for word in self.before), self.image))

    def file(self, path: object) -> str | None:
        """The text of a file that it can read, by its path, else by its name alone."""
        if not isinstance(path, str):
            return None
        name = path.rpartition("/")[2]
        named = (text for known, text in self.files.items() if known.rpartition("/")[2] == name)
        return self.files.get(path) or next(named, None)


def launch_of(words: Sequence[str]) -> Launch | None:
    """The engine that these words start; None for other commands."""
    for position, word in enumerate(words):
        name = PurePosixPath(word).name
        name = "" if "\x00" in name else name
        rest = tuple(words[position + 1 :])
        before = tuple(words[:position])
        if word in _MODULES:
            return Launch(_MODULES[word], rest[1:] if rest[:1] == ("serve",) else rest, before)
        if name in ("vllm", "sglang") and rest[:1] == ("serve",):
            return Launch(name, rest[1:], before)
        if name in ("vllm", "sglang") and rest[:1] == ("bench",):
            return None
        if name == "trtllm-serve" and rest[:1] and rest[0].startswith(("disaggregated", "mm_embedding")):
            return None  # what stands before both sides
        if name == "trtllm-serve":
            return Launch("trtllm", rest[1:] if rest[:1] == ("serve",) else rest, before)
        if re.fullmatch(r"vllm-openai(:.*)?", name) and rest and "serve" not in rest:
            return Launch("vllm", rest, (*before, word))
        trained = _training_engine(word, name, rest) or _configured_engine(word, name, rest)
        if trained is not None:
            return Launch(trained, rest, before, program=word)
    return None


def _training_engine(word: str, name: str, rest: tuple[str, ...]) -> str | None:
    if re.fullmatch(r"(verl|recipe)\.[\w.]*(main_\w+|\w+_main)", word):
        return "verl"
    if re.fullmatch(r"openrlhf\.cli\.train_ppo\w*", word):
        return "openrlhf"
    if not name.endswith(".py"):
        return None
    if name.startswith("train") and any(
        w.startswith(("--actor-num-gpus-per-node", "--rollout-num-gpus")) for w in rest
    ):
        return "slime"
    trains = any(w.startswith(("--train-iters", "--train-samples", "--global-batch-size")) for w in rest)
    shaped = any(w.startswith(("--num-layers", "--tensor-model-parallel-size")) for w in rest)
    return "megatron-lm" if name.startswith("pretrain_") or (trains and shaped) else None


def _configured_engine(word: str, name: str, rest: tuple[str, ...]) -> str | None:
    """Programs that are told what to do by a configuration, whatever they are called."""
    if word == "torchtitan.train" or word.endswith("torchtitan/train.py"):
        return "torchtitan"
    if name == "llamafactory-cli" and rest[:1] == ("train",):
        return "llama-factory"
    if re.search(r"examples/(llm|vlm)_\w+/\w+\.py\Z", word) and any(text in ("-c", "--config") for text in rest):
        return "nemo-automodel"
    if name.endswith(".py") or "\x00" in word:
        flags = {text.partition("=")[0] for text in rest}
        known = {"--job.config_file": "torchtitan", "--deepspeed": "deepspeed", "--deepspeed_config": "deepspeed",
                 "--plan-mesh": "torchrun"}  # fmt: skip
        return next((engine for flag, engine in known.items() if flag in flags), None)
    return None


_LIBRARIES = {"megatron.bridge": "megatron-bridge"}


def _program_of(words: Sequence[str], files: Mapping[str, str]) -> Launch | None:
    """The launch of a program beside the script that a library of training runs."""
    for position, word in enumerate(words):
        text = files.get(word, files.get(word.rpartition("/")[2], "")) if word.endswith(".py") else ""
        for library, engine in _LIBRARIES.items():
            if re.search(rf"(?m)^\s*(from|import) {re.escape(library)}\b", text):
                return Launch(engine, tuple(words[position + 1 :]), tuple(words[:position]), program=word)
    return None


@dataclass(frozen=True)
class Started:
    """The launches of one way through a script."""

    launches: tuple[Launch, ...]
    world: World


def launches_of_script(
    text: str, given: Mapping[str, str], source: str, files: Mapping[str, str] | None = None, depth: int = 0
) -> list[Started]:
    """For every way through a script the launches in it; ways that launch nothing are left out where others do.

    Where no way launches anything while unset variables are empty, they are left open: one may say what is started.
    """
    text = re.sub(r"\\\s*\Z", "\n", text)  # a last line that continues with nothing
    reader = _Reader(given, source, dict(files or {}), tuple(broken_lines(parse_shell(text))), depth)
    for asks_unset in (False, True):
        ways = [
            Started(tuple(each for command in world.commands for each in reader.started(command, world)), world)
            for world in worlds(text, given, source, reader.files, asks_unset=asks_unset)
        ]
        launching = [way for way in ways if way.launches]
        if launching:
            return launching
    return []


@dataclass(frozen=True)
class _Reader:
    given: Mapping[str, str]
    source: str
    files: Mapping[str, str]
    broken: tuple[int, ...]  # lines that are no shell
    depth: int  # scripts around this one

    def started(self, command: Command, world: World) -> list[Launch]:
        """The launches of one command, those of a script inside it with what stands around it."""
        files = {**self.files, **world.files}
        inner = shell_text(command.words)
        if inner is not None and self.depth < MAX_NESTING:
            known = {**command.variables, **command.environment, **self.given}
            below = launches_of_script(inner, known, self.source, files, self.depth + 1)
            around = tuple(word for word in command.words if word != inner)
            return [_around(launch, around, command) for launch in (below[0].launches if below else ())]
        launch = launch_of(command.words) or _program_of(command.words, files)
        if launch is None:
            return []
        if any(command.line <= line <= command.last_line + 1 for line in self.broken):
            place = f"{self.source}:{command.line}"
            raise PlannerError("is not whole where an engine is started", where=place, hint="close its quotes")
        return [_around(replace(launch, files=files), (), command)]


def _around(launch: Launch, before: tuple[str, ...], command: Command) -> Launch:
    environment = {**command.environment, **launch.environment}
    return replace(launch, before=(*before, *launch.before), environment=environment, variables=command.variables)


def shell_text(words: Sequence[str]) -> str | None:
    """The script of `bash -c SCRIPT`, or of `ssh HOST SCRIPT` and the like; None for other commands."""
    for position, word in enumerate(words[:-1]):
        if PurePosixPath(word).name in SHELLS:
            for offset, flag in enumerate(words[position + 1 : -1], position + 1):
                if re.fullmatch(r"-[a-z]*c", flag):
                    return next((word for word in words[offset + 1 :] if word != "--"), None)
                if not flag.startswith("-") and flag != "pipefail":
                    break
    if words and PurePosixPath(words[0]).name in _REMOTE:
        return next((word for word in reversed(words[1:]) if re.search(r"\S\s+\S", word)), None)
    return None


def split_words(text: str) -> list[str]:
    """A text of flags as its words; the text split at blanks where its quotes do not close."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def words_of(value: object) -> Sequence[object]:
    """A list of words as it is, a text split; none where there is nothing."""
    return value if isinstance(value, list) else [] if value is None else split_words(str(value))


def substituted(text: str, look: Callable[[str], str | None]) -> str:
    """`$(NAME)` of Kubernetes replaced by what the environment holds, `$$` by one dollar; others stand as they are."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else _or(look(match[1]), match[1])

    return re.sub(r"\$\$|\$\(([A-Za-z_]\w*)\)", value, text)


def interpolated(text: str, given: Mapping[str, str]) -> str:
    """`${NAME:-default}` and `$NAME` of Compose and envsubst under variables; `$$` is one dollar."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        known, name = given.get(match[1] or match[3]), match[1] or match[3]
        return known if known is not None else mark([name]) if match[2] is None else match[2]

    return re.sub(r"\$\$|\$\{(\w+)(?::?-([^}]*))?[^}]*\}|\$([A-Za-z_]\w*)", value, text)


def _or(value: str | None, name: str) -> str:
    return f"\x00{name}\x00" if value is None else value
