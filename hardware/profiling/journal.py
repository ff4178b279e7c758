"""Append-only JSON-lines journal of measured points, from which an interrupted profile resumes."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from planner.errors import PlannerError
from planner.hardware.profiling.timing import KernelTiming

SCHEMA = "planner.profiling_journal/1"
FILE = "journal.jsonl"

Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """What all points of a journal share: device, accelerator name, and the rates that interpolation leans on."""

    accelerator: str
    device: dict[str, object]
    flop_per_s: dict[str, float]  # by precision
    bandwidth_bytes_per_s: float
    floor_s: float


@dataclass(slots=True)
class ProfileJournal:
    """Points by family and sizes; every new one is appended to the file at once."""

    path: Path
    rates: DeviceRates | None = None
    timings: dict[Key, KernelTiming] = field(default_factory=dict)
    sentinels_s: list[float] = field(default_factory=list)

    @classmethod
    def open(cls, folder: Path, *, resume: bool) -> "ProfileJournal":
        """The journal in `folder`, empty when there is none.

        Raises PlannerError for one that is there although nothing is to be resumed, and for a file that is no journal.
        A last line that was cut off is dropped.
        """
        journal = cls(folder / FILE)
        if not journal.path.exists():
            return journal
        if not resume:
            raise PlannerError(
                "holds a profile already",
                where=str(folder),
                hint="add `--resume` to go on with it, or name a new folder",
            )
        journal._read()
        return journal

    def _read(self) -> None:
        text = self.path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            self.path.write_bytes(whole)
        for number, line in enumerate(whole.decode("utf-8", "replace").splitlines(), start=1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                where, hint = f"{self.path}:{number}", "remove the folder and profile again"
                raise PlannerError(f"not a line of a profiling journal: {error!r}", where=where, hint=hint) from None

    def _take(self, entry: dict[str, object]) -> None:
        match entry.pop("what"):
            case "setting":
                if entry.pop("schema") != SCHEMA:
                    raise ValueError(f"schema is not {SCHEMA}")
                self.rates = DeviceRates(**entry)  # type: ignore[arg-type]  # JSON; a wrong name raises TypeError
            case "point":
                family, point = str(entry.pop("family")), entry.pop("point")
                assert isinstance(point, list)
                self.timings[family, tuple(point)] = KernelTiming(**entry)  # type: ignore[arg-type]  # as above
            case "sentinel":
                self.sentinels_s.append(float(str(entry["seconds"])))
            case other:
                raise ValueError(f"unknown entry {other!r}")

    def begin(self, rates: DeviceRates) -> None:
        """Starts the file; a journal that is resumed keeps the rates it began with.

        Raises PlannerError when it was begun on another device.
        """
        if self.rates is None:
            self.rates = rates
            self._append({"what": "setting", "schema": SCHEMA, **asdict(rates)})
            return
        began = (self.rates.accelerator, self.rates.device.get("name"))
        if began != (rates.accelerator, rates.device.get("name")):
            own = f"{rates.accelerator} ({rates.device.get('name')})"
            raise PlannerError(
                f"begun on {began[0]} ({began[1]}), not on {own}",
                where=str(self.path),
                hint="name a new folder for this device",
            )

    def add(self, key: Key, timing: KernelTiming) -> None:
        """Keeps one point."""
        self.timings[key] = timing
        self._append({"what": "point", "family": key[0], "point": list(key[1]), **asdict(timing)})

    def add_sentinel(self, seconds: float) -> None:
        """Keeps one run of the sentinel kernel."""
        self.sentinels_s.append(seconds)
        self._append({"what": "sentinel", "seconds": seconds})

    def _append(self, entry: dict[str, object]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise PlannerError(
                f"cannot be written: {error.strerror}", where=str(self.path), hint="name a folder that can be written"
            ) from None
