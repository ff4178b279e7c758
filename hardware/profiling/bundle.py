"""Packs a profile into a few flat files to carry between machines, and unpacks it into the user's store."""

import hashlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from planner.documents.files import write_bytes_atomic, write_text_atomic
from planner.errors import PlannerError
from planner.hardware.profiles.files import publish, staging
from planner.hardware.profiles.store import INDEX, ProfileStore, read_index
from planner.hardware.profiling.journal import FILE as JOURNAL
from planner.hardware.profiling.writer import CARD, CARD_SCHEMA

TABLES, SUMMARY = "tables.zip", "summary.json"
SUMMARY_SCHEMA = "planner.gpu_run/1"
MOST_FILES = 8
LARGEST_DRIFT = 0.10
NEEDED_TABLES = ("context_attention", "gemm", "generation_attention")
_HINT = "run `make gpu OUT=DIR` again, with a larger budget if it ran out"
_SAFE_NAME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")


@dataclass(frozen=True, slots=True)
class Adopted:
    """Where a result was filed."""

    accelerator: str
    profile: Path
    evidence: Path
    tables: tuple[str, ...]


def pack(profile: Path, output: Path, *, facts: Mapping[str, object]) -> None:
    """Packs a profile's tables into one file of `output`, beside card and journal; writes the summary last.

    `facts` are added to the summary, which lists the digest of every file that lies in `output` by then.
    """
    output.mkdir(parents=True, exist_ok=True)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in (INDEX, *_table_files(profile)):
            archive.write(profile / name, name)
    write_bytes_atomic(output / TABLES, packed.getvalue())
    for name in (CARD, JOURNAL):
        if (profile / name).resolve() != (output / name).resolve():
            shutil.copyfile(profile / name, output / name)
    papers = [path for path in sorted(output.iterdir()) if path.is_file() and path.name != SUMMARY]
    files = {path.name: _digest(path) for path in papers}
    if len(files) >= MOST_FILES:
        raise PlannerError(f"{len(files) + 1} files, more than {MOST_FILES}", where=str(output), hint="empty it first")
    summary = {"schema": SUMMARY_SCHEMA, "files": files, **facts}
    write_text_atomic(output / SUMMARY, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")


def _table_files(profile: Path) -> list[str]:
    """Files of the tables that the index names, relative to the store."""
    return [
        entry.relative_to(profile).as_posix()
        for folder in sorted(read_index(profile))
        for entry in sorted((profile / folder).iterdir())
    ]


def adopt(result: Path, root: Path) -> Adopted:
    """Files a packed result under `root`: tables and card in hardware/profiles/<accelerator>, the rest in
    docs/evidence/<accelerator>.

    Raises PlannerError, and leaves `root` as it was, when the result is not whole: a missing or changed file, a run
    that did not finish, a device that drifted, a table that is missing or cannot be read.
    """
    if not (root / "hardware" / "profiles").is_dir():
        raise PlannerError(
            "is no checkout of planner",
            where=str(root),
            hint="run it at the top of a checkout of planner, or name that with `--root`",
        )
    summary = _json(result / SUMMARY, SUMMARY_SCHEMA)
    _check_files(result, summary)
    card = _json(result / CARD, CARD_SCHEMA)
    accelerator = _check_card(card, result)
    target, evidence = root / "hardware" / "profiles" / accelerator, root / "docs" / "evidence" / accelerator
    with staging(target.parent) as staged:
        _unpack(result / TABLES, staged / "store")
        tables = _check_tables(staged / "store", accelerator)
        shutil.copyfile(result / CARD, staged / "store" / CARD)
        papers = staged / "evidence"
        papers.mkdir()
        for name in (SUMMARY, *summary["files"]):
            if name != TABLES:
                shutil.copyfile(result / name, papers / name)
        evidence.parent.mkdir(parents=True, exist_ok=True)
        publish(papers, evidence)
        publish(staged / "store", target)
    return Adopted(accelerator, target, evidence, tables)


def _json(path: Path, schema: str) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        stated = data["schema"]
    except OSError:
        raise PlannerError("is missing: the result is not whole", where=str(path), hint=_HINT) from None
    except (ValueError, KeyError, TypeError):
        raise PlannerError("is no document of a profile", where=str(path), hint=_HINT) from None
    if stated != schema:
        raise PlannerError(f"schema must be {schema}, found {stated}", where=str(path), hint=_HINT)
    return data


def _check_files(result: Path, summary: dict[str, Any]) -> None:
    """Every file that the summary lists is there as it was written, and the run had finished."""
    if summary.get("finished") is not True:
        raise PlannerError("the run did not finish", where=str(result / SUMMARY), hint=_HINT)
    files = summary.get("files")
    if not isinstance(files, dict) or not {TABLES, CARD, JOURNAL} <= set(files):
        raise PlannerError("does not list tables, card and journal", where=str(result / SUMMARY), hint=_HINT)
    for name, digest in files.items():
        path = result / name
        if PurePosixPath(name).name != name or not path.is_file():
            raise PlannerError("is missing: the result is not whole", where=str(path), hint=_HINT)
        if _digest(path) != digest:
            raise PlannerError("was changed after the run, or is damaged", where=str(path), hint="copy it again")


def _check_card(card: dict[str, Any], result: Path) -> str:
    where = str(result / CARD)
    accelerator, drift = str(card.get("accelerator")), card.get("sentinel_drift")
    if not set(accelerator) <= _SAFE_NAME:
        raise PlannerError(f"`{accelerator}` is no name of an accelerator", where=where, hint=_HINT)
    if not isinstance(drift, (int, float)) or drift > LARGEST_DRIFT:
        raise PlannerError(
            f"the device drifted by {drift!r} while it was measured, more than {LARGEST_DRIFT:g}",
            where=where,
            hint="measure again on a device that nothing else uses",
        )
    return accelerator


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(archive) as packed:
            for name in packed.namelist():
                parts = PurePosixPath(name).parts
                if os.path.isabs(name) or ".." in parts:
                    raise PlannerError(f"holds `{name}`, outside of it", where=str(archive), hint=_HINT)
            packed.extractall(folder)
    except zipfile.BadZipFile:
        raise PlannerError("is no archive of tables", where=str(archive), hint=_HINT) from None


def _check_tables(store: Path, accelerator: str) -> tuple[str, ...]:
    """The tables of the store, every one of which can be read; raises PlannerError when one is missing."""
    opened = ProfileStore.open([store])
    identities = opened.identities()
    for identity in identities:
        if identity.accelerator != accelerator:
            raise PlannerError(
                f"holds a table of `{identity.accelerator}`, the card speaks of `{accelerator}`",
                where=str(store),
                hint=_HINT,
            )
        opened.select(accelerator=accelerator, table=identity.table, engine=identity.engine, version=identity.version)
    tables = tuple(sorted({identity.table for identity in identities}))
    missing = [name for name in NEEDED_TABLES if name not in tables]
    if missing:
        raise PlannerError(f"has no table {', '.join(missing)}: half a profile", where=str(store), hint=_HINT)
    return tables


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
