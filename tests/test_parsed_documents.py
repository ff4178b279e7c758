"""YAML on a machine without PyYAML: data that were parsed elsewhere are found by the digest of their text."""

import hashlib
import json
import sys
from pathlib import Path

import pytest

from planner.documents.read import PARSED_VARIABLE, load_document
from planner.errors import PlannerError

TEXT = "name: one\nsizes: [1, 2]\n"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A YAML file where PyYAML cannot be imported."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "one.yaml").write_text(TEXT)
    return tmp_path / "one.yaml"


def test_a_text_that_was_parsed_before_is_read_without_pyyaml(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = tmp_path / "parsed.json"
    parsed.write_text(json.dumps({hashlib.sha256(TEXT.encode()).hexdigest(): {"name": "one", "sizes": [1, 2]}}))
    monkeypatch.setenv(PARSED_VARIABLE, str(parsed))
    assert load_document(written).data == {"name": "one", "sizes": [1, 2]}
    written.write_text(TEXT.replace("one", "two"))
    with pytest.raises(PlannerError, match="PyYAML is not installed"):
        load_document(written)


def test_yaml_without_pyyaml_is_an_error_that_says_how_to_fix_it(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PARSED_VARIABLE, raising=False)
    with pytest.raises(PlannerError, match=r"one\.yaml: is YAML, and PyYAML is not installed(.|\n)*pip install pyyaml"):
        load_document(written)
