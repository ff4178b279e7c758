"""The rules of engines read from their files, one an engine, and looked up by version."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from planner.documents.read import Document, parse_document
from planner.engines.handover import RULES
from planner.engines.parallelism import DRAFTS, SHAPES
from planner.engines.release import Asynchronous, Connector, Dispatcher, Release, Router, Rule, WeightFormat, numbers
from planner.engines.serving.description import EngineDescription
from planner.engines.serving.registry import SERVING_ENGINES
from planner.errors import PlannerError

SCHEMA = "planner.engine/1"


def release_of(engine: str, version: str | None, *, where: str = "engine.version") -> Release:
    """The rules of an engine's version, or of the nearest release that has some (`Release.covers` tells which).

    Raises PlannerError for an engine without rules, and for a version that is no release number.
    """
    releases = _releases(engine)
    if version is None:
        return releases[-1]
    if not numbers(version):
        raise PlannerError(
            f"`{version}` is no release of {releases[-1].title}",
            where=where,
            hint=f"write a number such as `{releases[-1].read}`, or leave `version` out",
        )
    for release in releases:
        if release.covers(version):
            return release
    older = numbers(version) < numbers(releases[0].first)
    return releases[0] if older else max(
        (release for release in releases if numbers(release.first) <= numbers(version)),
        key=lambda release: numbers(release.first),
    )  # fmt: skip


@cache
def _releases(engine: str) -> tuple[Release, ...]:
    """All of an engine, oldest first."""
    place = resources.files("planner.engines").joinpath(f"{engine}.yaml")
    if not place.is_file():
        *others, last = SERVING_ENGINES
        raise PlannerError(
            f"no rules of engine `{engine}`", where="engine.name", hint=f"take {', '.join(others)} or {last}"
        )
    return read_releases(parse_document(place.read_text(encoding="utf-8"), f"planner/engines/{engine}.yaml"))


def read_releases(document: Document) -> tuple[Release, ...]:
    """The releases of a file; raises PlannerError with file and line for what is missing, unknown or of no source."""
    reader = _Reader(document)
    top = reader.fields(document.data, (), {"schema", "engine", "releases"})
    if top["schema"] != SCHEMA:
        raise reader.error(f"schema must be {SCHEMA}, found {top['schema']!r}", ("schema",))
    engine = SERVING_ENGINES.get(str(top["engine"]))
    if engine is None:
        raise reader.error(f"no engine `{top['engine']}` is described in planner/engines/serving", ("engine",))
    rows = reader.rows(top["releases"], ("releases",))
    return tuple(
        sorted(
            (reader.release(row, ("releases", i), engine) for i, row in enumerate(rows)),
            key=lambda release: numbers(release.first),
        )
    )


_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class _Reader:
    """Parts of a file as typed data."""

    document: Document

    def error(self, what: str, path: _Path) -> PlannerError:
        return PlannerError(what, where=self.document.where(path), hint="see planner/engines/vllm.yaml")

    def fields(self, data: object, path: _Path, required: set[str], optional: frozenset[str] = frozenset()) -> Any:  # noqa: ANN401 - plain data
        if not isinstance(data, dict):
            raise self.error("must be a mapping", path)
        missing, unknown = sorted(required - set(data)), sorted(set(data) - required - optional)
        if missing or unknown:
            what = f"`{missing[0]}` is missing" if missing else f"unknown key `{unknown[0]}`"
            raise self.error(what, path)
        return data

    def rows(self, data: object, path: _Path) -> Sequence[object]:
        if not isinstance(data, list):
            raise self.error("must be a list", path)
        return data

    def text(self, data: object, path: _Path) -> str:
        if not isinstance(data, str) or not data:
            raise self.error(f"must be text, found {data!r}", path)
        return data

    def texts(self, data: object, path: _Path) -> dict[str, str]:
        given = self.fields(data, path, set(), frozenset(data) if isinstance(data, dict) else frozenset())
        return {str(key): self.text(value, (*path, str(key))) for key, value in given.items()}

    def words(self, data: object, path: _Path) -> tuple[str, ...]:
        return tuple(self.text(value, (*path, i)) for i, value in enumerate(self.rows(data, path)))

    def rules(self, data: object, path: _Path, known: set[str]) -> tuple[Rule, ...]:
        rules = []
        for i, row in enumerate(self.rows(data, path)):
            given = self.fields(row, (*path, i), {"rule", "why", "source"})
            if given["rule"] not in known:
                raise self.error(f"unknown rule `{given['rule']}`", (*path, i, "rule"))
            rules.append(Rule(*(self.text(given[key], (*path, i, key)) for key in ("rule", "why", "source"))))
        return tuple(rules)

    def release(self, data: object, path: _Path, engine: EngineDescription) -> Release:
        parts = {"connectors", "routers", "shapes", "drafts", "dispatchers", "weights"}
        given = self.fields(data, path, {"read", "first", "before"} | parts, frozenset({"asynchronous"}))
        rows = {name: self.rows(given[name], (*path, name)) for name in ("connectors", "routers", "dispatchers")}
        formats = self.fields(given["weights"], (*path, "weights"), set(), frozenset(given["weights"]))
        return Release(
            engine=engine.name,
            title=engine.title,
            read=self.text(given["read"], (*path, "read")),
            first=self.text(given["first"], (*path, "first")),
            before=self.text(given["before"], (*path, "before")),
            connectors=tuple(
                self.connector(row, (*path, "connectors", i), set(RULES)) for i, row in enumerate(rows["connectors"])
            ),
            routers=tuple(self.router(row, (*path, "routers", i)) for i, row in enumerate(rows["routers"])),
            shapes=self.rules(given["shapes"], (*path, "shapes"), set(SHAPES)),
            drafts=self.rules(given["drafts"], (*path, "drafts"), set(DRAFTS)),
            dispatchers=tuple(
                self.dispatcher(row, (*path, "dispatchers", i)) for i, row in enumerate(rows["dispatchers"])
            ),
            weights={name: self.weight_format(row, (*path, "weights", name)) for name, row in formats.items()},
            asynchronous=self.asynchronous(given.get("asynchronous"), (*path, "asynchronous")),
        )

    def asynchronous(self, data: object, path: _Path) -> Asynchronous | None:
        if data is None:
            return None
        given = self.fields(data, path, {"default", "off", "source"})
        if not isinstance(given["default"], bool):
            raise self.error("default is true or false", (*path, "default"))
        return Asynchronous(given["default"], *(self.text(given[key], (*path, key)) for key in ("off", "source")))

    def connector(self, data: object, path: _Path, known: set[str]) -> Connector:
        given = self.fields(
            data, path, {"name", "started_by", "roles", "rules", "source"}, frozenset({"config", "settings"})
        )
        if given["started_by"] not in ("prefill", "decode"):
            raise self.error("started_by is prefill or decode", (*path, "started_by"))
        return Connector(
            name=self.text(given["name"], (*path, "name")),
            started_by=given["started_by"],
            roles=self.texts(given["roles"], (*path, "roles")),
            config=self.texts(given.get("config", {}), (*path, "config")),
            settings=self.texts(given.get("settings", {}), (*path, "settings")),
            rules=self.rules(given["rules"], (*path, "rules"), known),
            source=self.text(given["source"], (*path, "source")),
        )

    def router(self, data: object, path: _Path) -> Router:
        given = self.fields(data, path, {"program", "policies", "source"})
        return Router(
            self.text(given["program"], (*path, "program")),
            self.words(given["policies"], (*path, "policies")),
            self.text(given["source"], (*path, "source")),
        )

    def dispatcher(self, data: object, path: _Path) -> Dispatcher:
        given = self.fields(data, path, {"name", "functions", "source"})
        return Dispatcher(
            self.text(given["name"], (*path, "name")),
            self.words(given["functions"], (*path, "functions")),
            self.text(given["source"], (*path, "source")),
        )

    def weight_format(self, data: object, path: _Path) -> WeightFormat:
        keys = ("loads_from", "multiplies_from", "below", "source")
        given = self.fields(data, path, set(keys))
        return WeightFormat(*(self.text(given[key], (*path, key)) for key in keys))
