"""The wheel holds the whole program and nothing else."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from planner import doctor

ROOT = Path(__file__).parent.parent
LINKS = ("cli", "hardware", "models", "solvers")
COPIED = ("planner", *LINKS, "pyproject.toml", "README.md", "LICENSE", "NOTICE")


def packages() -> set[str]:
    """Every folder of the checkout with an `__init__.py`, by the name it installs as."""
    packages_there = {"planner"}
    for top in ("planner", *LINKS):
        for init in (ROOT / top).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT).parts
            if parts[0] == "planner" and len(parts) > 1 and parts[1] in LINKS:
                continue  # rglob follows no links on 3.11 and 3.12, and does not from 3.13 on unless asked
            packages_there.add(".".join(parts if parts[0] == "planner" else ("planner", *parts)))
    return packages_there


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built from a copy of the checkout, with setuptools as installed here."""
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(output)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (path,) = output.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def wheel_names(wheel: zipfile.ZipFile) -> set[str]:
    """Names of the files in the wheel."""
    return set(wheel.namelist())


def test_top_level_of_the_wheel_is_planner_alone(wheel_names: set[str]) -> None:
    assert {name.split("/")[0] for name in wheel_names if ".dist-info/" not in name} == {"planner"}


def test_the_wheel_holds_the_licence_and_says_which_it_is(wheel: zipfile.ZipFile) -> None:
    for name in ("LICENSE", "NOTICE"):
        (member,) = (path for path in wheel.namelist() if path.endswith(f".dist-info/licenses/{name}"))
        assert wheel.read(member) == (ROOT / name).read_bytes()
    (member,) = (path for path in wheel.namelist() if path.endswith(".dist-info/METADATA"))
    headers = wheel.read(member).decode().partition("\n\n")[0].splitlines()
    assert "License-Expression: Apache-2.0" in headers
    assert {"License-File: LICENSE", "License-File: NOTICE"} <= set(headers)


def test_the_licence_is_the_text_of_apache_2() -> None:
    text = (ROOT / "LICENSE").read_bytes()
    assert hashlib.sha256(text).hexdigest() == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_every_package_of_the_checkout_is_in_the_wheel(wheel_names: set[str]) -> None:
    missing = {name for name in packages() if f"{name.replace('.', '/')}/__init__.py" not in wheel_names}
    assert not missing, f"list them under [tool.setuptools] packages: {sorted(missing)}"


def test_every_listed_package_exists() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert set(listed) == packages()
    assert listed == sorted(listed)


def test_every_module_and_catalog_of_the_checkout_is_in_the_wheel(wheel_names: set[str]) -> None:
    wanted = set()
    for top in ("planner", *LINKS):
        for path in [*(ROOT / top).rglob("*.py"), *(ROOT / top).rglob("*.yaml"), *(ROOT / top).rglob("py.typed")]:
            parts = path.relative_to(ROOT).parts
            if not (parts[0] == "planner" and parts[1] in LINKS):
                wanted.add("/".join(parts if parts[0] == "planner" else ("planner", *parts)))
    assert sorted(wanted - wheel_names) == []


def test_the_wheel_alone_solves_an_example(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """As `pip install --no-deps` unpacks it, with the dependencies that are here, in a folder of its own."""
    wheel.extractall(tmp_path / "site")
    example = shutil.copy(ROOT / "examples" / "serve-cost-one-pool.yaml", tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    solve = [sys.executable, "-m", "planner", "solve", example, "--level", "static", "-o", "plan.json"]
    subprocess.run(solve, cwd=tmp_path, env=environment, check=True, capture_output=True)
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["certificate"]["status"] == "optimal"
    where = [sys.executable, "-c", "import planner; print(planner.__file__)"]
    home = subprocess.run(where, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout
    assert home.strip() == str(tmp_path / "site" / "planner" / "__init__.py")


@pytest.mark.parametrize("name", LINKS)
def test_type_checkers_find_each_sub_package_through_a_link(name: str) -> None:
    link = ROOT / "planner" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name


def test_constraints_pin_every_dependency_to_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = {}
    for line in lines:
        match = re.fullmatch(r"([A-Za-z0-9_.-]+)==([A-Za-z0-9.+!]+)", line)
        assert match, line
        pinned[_normal(match[1])] = match[2]
    needed = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {_normal(re.split(r"[<>=!~ \[]", requirement)[0]) for requirement in needed}
    assert not names - set(pinned)


def test_doctor_looks_for_every_dependency_and_for_extras_that_there_are() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {re.split(r"[<>=!~ \[]", requirement)[0] for requirement in project["dependencies"]} == set(doctor.NEEDED)
    for package, extra in doctor.EXTRAS.items():
        assert any(requirement.startswith(package) for requirement in project["optional-dependencies"][extra])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("name", ["tests", "release"])
def test_workflows_name_versions_of_actions_and_targets_that_exist(name: str) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    targets = set(re.findall(r"^([\w.-]+|\$\(VENV\)/[\w.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert "uses" not in step or re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"])
            for target in re.findall(r"^make (\S+)", step.get("run", ""), re.MULTILINE):
                assert target.replace(".venv/", "$(VENV)/") in targets


def test_the_action_and_the_container_install_the_pinned_versions() -> None:
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    assert '-c "$ACTION_PATH/constraints.txt" "$ACTION_PATH"' in steps[0]["run"]
    assert "pip install --no-cache-dir -c /src/constraints.txt" in (ROOT / "Containerfile").read_text()
