"""Where the published configs lie, if they do."""

from pathlib import Path

import pytest

CONFIGS = Path(__file__).resolve().parents[3] / "shared" / "validators" / "models"


@pytest.fixture(scope="session")
def config_folders() -> list[Path]:
    """The folders that hold one published config.json each; skips where they are absent."""
    folders = sorted(CONFIGS.glob("*/")) if CONFIGS.is_dir() else []
    if not folders:
        pytest.skip(f"no published configs under {CONFIGS}")
    return folders
