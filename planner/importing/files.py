"""Artifacts from paths, folders and standard input to one reading; nothing in them is run or fetched."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from planner.documents.read import decode, read_bytes
from planner.errors import PlannerError
from planner.importing.audit import findings_of
from planner.importing.records import Reading
from planner.importing.registry import Artifact, NothingStarted, read_artifact
from planner.importing.serving import reading_of_roles

MAX_BYTES = 16 * 2**20
SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".sh", ".sbatch", ".slurm", ".bash", ".py")


Gathered = Mapping[str, Mapping[str, str]]
"""The texts of every path that was given, those of a folder by the paths of its files."""


def gathered(paths: Sequence[str]) -> Gathered:
    """The texts of files, of folders, and of standard input, which can be read once alone."""
    return {name: {path: _text(path) for path in _files(name)} for name in dict.fromkeys(paths)}


def read_files(paths: Sequence[str], given: Mapping[str, str]) -> Reading:
    """What the artifacts decide together, with its findings. Raises PlannerError, naming the file and the fix."""
    return read_gathered(gathered(paths), given)


def read_gathered(texts: Gathered, given: Mapping[str, str]) -> Reading:
    """What texts decide together, with its findings."""
    pairs = [pair for name, own in texts.items() for pair in _readings(name, own, given)]
    readings = [reading for _, reading in pairs]
    reading = readings[0] if len(readings) == 1 else joined(readings, [path for path, _ in pairs])
    findings = tuple(dict.fromkeys((*reading.findings, *findings_of(reading.fields))))
    return replace(reading, findings=findings)


def _readings(name: str, texts: Mapping[str, str], given: Mapping[str, str]) -> list[tuple[str, Reading]]:
    """What a file decides, or each file of a folder that starts an engine, beside all others of it."""
    if name in texts:
        return [(name, read_artifact(Artifact(texts[name], shown_path(name), given)))]
    beside = files_beside(texts)
    readings, refused = list[tuple[str, Reading]](), NothingStarted("starts nothing that planner knows", where=name)
    for path, text in texts.items():
        try:
            readings.append((path, read_artifact(Artifact(text, path, given, beside))))
        except NothingStarted as error:
            refused = error
    if not readings:
        raise refused
    own = [(path, reading) for path, reading in readings if not _named_in(path, texts)]
    return _said_once(own or readings, texts)


def _named_in(path: str, texts: Mapping[str, str]) -> bool:
    """Whether another file of the folder names a configuration, or runs a script: it is read there."""
    file, others = Path(path), [text for other, text in texts.items() if other != path]
    if file.suffix in (".yaml", ".yml", ".json", ".toml"):
        return any(file.name in text for text in others)
    if file.suffix == ".py":
        return any(re.search(rf"--module[= ]+[\w.]*\b{re.escape(file.stem)}\b", text) for text in others)
    runs = re.compile(rf"(?m)(^|[;&|]\s*|\b(?:bash|sh|source|sbatch)\s+|(?<!\S)\.\s+)[^\s#]*\b{re.escape(file.name)}\b")
    return any(runs.search(text) for text in others)


def _said_once(readings: list[tuple[str, Reading]], texts: Mapping[str, str]) -> list[tuple[str, Reading]]:
    """The readings without configurations that stand inside a manifest of the folder too."""
    inside = [_settings(reading) for path, reading in readings if "serveConfigV2" in texts[path]]
    return [
        (path, reading)
        for path, reading in readings
        if "serveConfigV2" in texts[path] or _settings(reading) not in inside
    ]


def _settings(reading: Reading) -> list[dict[str, object]]:
    """The roles without the nodes that a manifest alone knows."""
    return [{**role, "nodes_per_replica": None} for role in reading.fields.get("roles", ())]


def shown_path(path: str) -> str:
    """A path as errors and diffs have it."""
    return "<stdin>" if path == "-" else path


def files_beside(texts: Mapping[str, str]) -> dict[str, str]:
    """The files of a folder by their names."""
    return {Path(path).name: text for path, text in texts.items()}


def _files(name: str) -> list[str]:
    if name == "-" or not Path(name).is_dir():
        return [name]
    files = sorted(str(path) for path in Path(name).rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if not files:
        raise PlannerError("holds no artifact", where=name, hint=f"files end in {', '.join(SUFFIXES)}")
    return files


def _text(path: str) -> str:
    source = shown_path(path)
    content = read_bytes(path, source)
    if len(content) > MAX_BYTES:
        raise PlannerError("is larger than 16 MiB", where=source, hint="name the manifest or script alone")
    if b"\x00" in content[:65536]:
        raise PlannerError("is a binary file", where=source, hint="name a script, a manifest or a configuration")
    return decode(content, source)


def joined(readings: Sequence[Reading], files: Sequence[str]) -> Reading:
    """Serving artifacts as one deployment: all roles of all files. Raises PlannerError for those of different kinds."""
    first = readings[0].fields
    for reading, path in zip(readings, files, strict=True):
        for key in ("kind", "engine"):
            if reading.fields[key] != first[key] or first["kind"] != "serve":
                raise PlannerError(
                    f"{key} is `{reading.fields[key]}`, and `{first[key]}` in {files[0]}",
                    where=path,
                    hint="import files of one deployment at a time",
                )
    models = {reading.fields["model"] for reading in readings} - {None}
    if len(models) > 1:
        raise PlannerError(
            f"the files serve several models: {', '.join(sorted(models))}",
            where=files[0],
            hint="import files of one deployment at a time",
        )
    types = {reading.fields["gpu_type"] for reading in readings} - {None}
    return reading_of_roles(
        first["engine"],
        models.pop() if models else None,
        [role for reading in readings for role in reading.fields["roles"]],
        [name for reading in readings for name in reading.unresolved],
        gpu_type=types.pop() if len(types) == 1 else None,
        guesses=[guess for reading in readings for guess in reading.guesses],
    )
