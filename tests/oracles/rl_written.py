"""RL problems of tests as files, with other options."""

import copy
from pathlib import Path
from typing import Any

import yaml


def written(problem: dict[str, Any], folder: Path, **options: Any) -> Path:  # noqa: ANN401
    """A file of the problem with these options changed."""
    document = copy.deepcopy(problem)
    document["options"] |= options
    path = folder / "problem.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path
