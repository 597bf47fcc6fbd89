"""What settings name, which run began here, and how a yes is kept."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import consent
from grpo_engine.config.parse import build, merge
from grpo_engine.consent import UntrustedError, question_of
from grpo_engine.errors import ConfigError
from grpo_engine.events import RunFinished
from grpo_engine.presets import names as presets
from grpo_engine.presets import preset
from tests.engine.runs import events_of, settings, write_world


@pytest.fixture(autouse=True)
def _nothing_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(consent, "_digests", set())
    monkeypatch.setattr(consent, "_accepting", False)
    monkeypatch.chdir(tmp_path)


def tree(**changes: Any) -> dict[str, Any]:
    """Settings with a reward function of a file here."""
    Path("mine.py").write_text("def score(completions, **_): return [1.0]\n")
    base = {"rewards": {"functions": ["mine.py:score"]}}
    return build(merge(base, changes)).model_dump(mode="json")


def is_asked(settings: dict[str, Any]) -> bool:
    """Whether another process would ask."""
    consent._digests.clear()
    return not question_of(settings).is_allowed


@pytest.mark.parametrize("name", presets())
def test_presets_name_nothing_that_is_asked_but_models_and_data_of_the_hub(name: str) -> None:
    items = question_of(preset(name).config.model_dump(mode="json")).items
    assert {item.action for item in items} <= {"contact"}


def test_a_run_that_began_here_is_not_asked_again_though_its_reward_file_is_edited() -> None:
    settings = tree()
    assert is_asked(settings)
    assert not consent.begins(build(settings))
    Path("mine.py").write_text("def score(completions, **_): return [2.0]\n")
    assert not is_asked({**settings, "name": "other", "seed": 9, "steps": 1000})


def test_a_stranger_cannot_pass_a_run_off_as_one_that_began_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = tree()
    consent.begins(build(settings))
    assert is_asked(merge(settings, {"task": {"prefill": "<tool_call>"}}))
    assert is_asked(merge(settings, {"rewards": {"options": {"score": {"path": "/etc"}}}}))
    assert is_asked(merge(settings, {"rewards": {"functions": ["mine.py:score", "b.py:f"]}}))
    other = Path("elsewhere")
    other.mkdir()
    monkeypatch.chdir(other)
    assert is_asked(settings)


def test_a_yes_lasts_until_the_settings_or_a_file_change() -> None:
    settings = tree()
    assert not question_of(settings).allow()
    assert not is_asked(settings)
    assert is_asked(merge(settings, {"rollout": {"group_size": 4}}))
    Path("mine.py").write_text("import os\n")
    assert is_asked(settings)


def test_the_yes_is_for_what_was_shown_not_for_what_the_file_became_meanwhile() -> None:
    settings = tree()
    with pytest.raises(UntrustedError) as caught:
        consent.build(settings, "run theirs")
    Path("mine.py").write_text("import os\n")
    caught.value.question.allow()
    assert is_asked(settings)


def test_code_that_was_allowed_stays_foreign_in_a_run_that_begins_here_with_it() -> None:
    settings = tree()
    question_of(settings).allow()
    assert consent.is_foreign(build(settings))
    edited = build(merge(settings, {"rollout": {"group_size": 4}}))
    consent.begins(edited)
    assert consent.is_foreign(edited)
    assert not is_asked(edited.model_dump(mode="json"))
    Path("mine.py").write_text("import os\n")
    assert is_asked(edited.model_dump(mode="json"))


def test_code_that_began_here_is_not_foreign_even_after_a_yes_to_a_run_with_it() -> None:
    consent.begins(build(tree()))
    other = tree(rollout={"group_size": 4})
    question_of(other).allow()
    assert not consent.is_foreign(build(other))


@pytest.mark.slow
def test_the_yes_is_kept_in_a_private_folder_and_survives_this_process(tmp_path: Path) -> None:
    question_of(tree()).allow()
    kept = tmp_path / "config/grpo-tui/trust"
    assert kept.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in kept.iterdir()} == {0o600}
    code = (
        "from tests.engine.test_consent import tree, consent; "
        "print(consent.question_of(tree()).is_allowed)"
    )
    root = Path(consent.__file__).parents[1]
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert out.stdout == "True\n"


@pytest.mark.parametrize("kind", ["file", "pipe", "link", "closed"])
def test_a_folder_that_cannot_be_used_asks_again_and_says_so(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "config/grpo-tui"
    path.mkdir(parents=True)
    match kind:
        case "file":
            (path / "trust").write_text("damaged")
        case "pipe":
            os.mkfifo(path / "trust")
        case "link":
            (tmp_path / "others").mkdir()
            (path / "trust").symlink_to(tmp_path / "others")
        case _:
            (path / "trust").write_bytes(b"\0" * 100)
            path.chmod(0o500)
    settings = tree()
    said = question_of(settings).allow()
    assert "until this program ends" in said
    assert question_of(settings).is_allowed
    assert is_asked(settings)


def test_objects_of_a_python_process_and_what_is_built_in_are_not_asked() -> None:
    settings = {
        "task": {"name": "python:rows", "tools": ["python:tool"], "environment": "python:Env"},
        "rewards": {"functions": ["python:score", "length"]},
        "algorithm": {"signal": "python:f"},
        "model": {"path": "starter-guess", "trust_remote_code": True},
    }
    assert question_of(settings).items == ()


def test_a_long_item_shows_its_beginning_length_and_digest() -> None:
    settings = {"task": {"name": "mine.py:f", "options": {"x": "y" * 50_000}}}
    (item,) = question_of(settings).items
    assert len(str(item)) < 2_200
    assert f"{len(item.target):,} characters" in str(item)
    assert len(item.target) > 50_000


@pytest.mark.parametrize("name", ["~nobody-here/x.py:f", "a\0b.py:f", "x" * 5_000 + "/y.jsonl"])
def test_hostile_paths_are_refused_or_asked_but_raise_nothing_else(name: str) -> None:
    for named in ({"task": {"name": name}}, {"model": {"path": name}}):
        with pytest.raises((UntrustedError, ConfigError)):
            consent.build(named, "run theirs")


def test_a_pipe_or_a_device_that_settings_name_is_not_read() -> None:
    os.mkfifo("pipe.jsonl")
    for path in ("pipe.jsonl", "/dev/zero"):
        assert question_of({"task": {"name": str(Path(path).absolute())}}).content


@pytest.mark.slow
def test_code_of_a_run_from_elsewhere_sees_a_short_list_of_variables_after_the_yes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = write_world(tmp_path / "world")
    (world / "spy.py").write_text(
        "import json, os\nfrom pathlib import Path\n\n\ndef score(completions, **_):\n"
        "    Path(__file__).with_name('seen.json').write_text(json.dumps(dict(os.environ)))\n"
        "    return [float(len(text)) for text in completions]\n"
    )
    monkeypatch.setenv("SERVICE_TOKEN", "secret")
    config = settings(world, rewards={"functions": [f"{world}/spy.py:score"]}, steps=1)

    def variables(folder: str) -> dict[str, str]:
        assert isinstance(events_of(config, tmp_path / folder)[-1], RunFinished)
        seen: dict[str, str] = json.loads((world / "seen.json").read_text())
        return seen

    assert not question_of(config.model_dump(mode="json")).allow()
    foreign = variables("foreign")
    assert "SERVICE_TOKEN" not in foreign
    assert foreign["PATH"] == os.environ["PATH"]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    monkeypatch.setattr(consent, "_digests", set())
    assert variables("own")["SERVICE_TOKEN"] == "secret"


def test_an_item_of_several_lines_cannot_look_like_several_items() -> None:
    command = "agent: id\n\n· nothing else"
    (item,) = question_of(tree_with(environment=command)).items
    assert "\n" not in str(item)
    assert "id↵↵· nothing else" in str(item)


def tree_with(**task: Any) -> dict[str, Any]:
    return {"task": task}
