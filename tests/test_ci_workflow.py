"""CI runs what the README says, on the versions that the project supports."""

import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / ".github" / "workflows" / "ci.yml"


@pytest.fixture
def workflow() -> Any:
    return yaml.safe_load(FILE.read_text())


def test_the_readmes_two_commands_and_the_device_report_are_run(workflow: Any) -> None:
    given = [step.get("run") for step in workflow["jobs"]["test"]["steps"]]
    for command in ('make run ARGS="doctor"', "make test", 'make device ARGS="--quick"'):
        assert command in given
        assert command.partition(" ARGS")[0] in (ROOT / "README.md").read_text()


def test_the_wheel_is_used_on_every_hosted_machine_and_before_a_merge(workflow: Any) -> None:
    given = [step.get("run") for step in workflow["jobs"]["test"]["steps"]]
    assert "make wheel ARGS=python" in given
    assert "make wheel" in (ROOT / ".ci" / "run").read_text().splitlines()


def test_every_python_that_is_supported_is_tried_on_every_kind_of_machine(workflow: Any) -> None:
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    start = "Programming Language :: Python :: "
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    supported = [line.removeprefix(start) for line in project["classifiers"] if start in line]
    assert matrix["python"] == supported
    assert project["requires-python"] == f">={supported[0]}"
    low, high = (tuple(map(int, text.split("."))) for text in (supported[0], supported[-1]))
    assert f"{low} <= sys.version_info[:2] <= {high}" in (ROOT / "tools" / "setup").read_text()
    assert matrix["os"] == ["ubuntu-24.04", "ubuntu-24.04-arm", "macos-15"]


def test_the_workflow_may_only_read_and_names_the_major_version_of_each_action(
    workflow: Any,
) -> None:
    assert workflow["permissions"] == {"contents": "read"}
    job = workflow["jobs"]["test"]
    assert "permissions" not in job
    for step in job["steps"]:
        if "uses" in step:
            assert step["uses"].startswith("actions/")
            assert step["uses"].rpartition("@v")[2].isdigit()


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed")
def test_actionlint_finds_nothing() -> None:
    done = subprocess.run(["actionlint", FILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
