"""Files of settings that build on others."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.parse import parse_sets, read_yaml
from grpo_engine.consent import UntrustedError
from grpo_engine.errors import ConfigError
from grpo_engine.extends import DEEPEST, Layer, combined, config_of, file_layers, sources
from grpo_engine.presets import preset


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run_settings(name: str) -> Mapping[str, Any]:
    return {"name": name, "steps": 7, "rollout": {"group_size": 6}}


def layers(**files: str) -> tuple[Layer, ...]:
    """The layers of the last of these files."""
    for name, text in files.items():
        Path(f"{name}.yaml").write_text(text, encoding="utf-8")
    return file_layers(Path(f"{name}.yaml"), run_settings)


def test_each_layer_goes_before_what_it_builds_on() -> None:
    result = layers(
        base="extends: starter\nsteps: 5\nrollout: {prompts: 4, group_size: 4}",
        mine="extends: base.yaml\nrollout: {group_size: 3}",
    )
    config = config_of((*result, Layer(source="--set", tree=parse_sets(["steps=6"]))))
    assert (config.steps, config.rollout.prompts, config.rollout.group_size) == (6, 4, 3)
    starter = preset("starter").config
    assert config.optimizer.learning_rate == starter.optimizer.learning_rate
    assert [layer.source for layer in result] == ["preset starter", "base.yaml", "mine.yaml"]


def test_a_later_one_of_a_list_goes_before_an_earlier_one() -> None:
    result = layers(a="steps: 1\nseed: 1", b="steps: 2\nseed: 2", mine="extends: [a.yaml, b.yaml]")
    assert combined(result) == {"steps": 2, "seed": 2}


def test_a_run_gives_its_settings_but_the_name() -> None:
    config = config_of(layers(mine="extends: run:old\nname: new"))
    assert (config.name, config.steps, config.rollout.group_size) == ("new", 7, 6)
    assert config_of(layers(mine="extends: run:old")).name == ""


def test_a_run_that_began_elsewhere_brings_no_code_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(Path("config").absolute()))
    Path("theirs.py").write_text("raise SystemExit('imported')")
    Path("mine.yaml").write_text("extends: run:theirs")
    with pytest.raises(UntrustedError, match=r"run theirs .*theirs\.py"):
        file_layers(Path("mine.yaml"), lambda _: {"rewards": {"functions": ["theirs.py:score"]}})


def test_what_two_files_build_on_counts_once() -> None:
    """Counted again after `a`, the base would set the steps back to 1."""
    result = layers(
        base="steps: 1\nseed: 1",
        a="extends: base.yaml\nsteps: 2",
        b="extends: base.yaml\nseed: 3",
        mine="extends: [a.yaml, b.yaml]",
    )
    assert combined(result) == {"steps": 2, "seed": 3}


def test_a_file_without_a_recipe_changes_the_one_that_is_chosen_after_it() -> None:
    result = layers(
        base="algorithm: {recipe: grpo, beta: 0.04}",
        mine="extends: base.yaml\nalgorithm: {passes: 2}",
    )
    chosen = Layer(source="--set", tree=parse_sets(["algorithm.recipe=dapo"]))
    algorithm = config_of((*result, chosen)).algorithm
    assert (algorithm.recipe, algorithm.passes, algorithm.beta) == ("dapo", 2, None)


def test_a_file_is_looked_for_beside_the_one_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "base.yaml").write_text("seed: 9")
    (tmp_path / "inner" / "over.yaml").write_text("extends: base.yaml")
    assert combined(layers(base="seed: 1", mine="extends: inner/over.yaml")) == {"seed": 9}
    assert combined(layers(mine=f"extends: {tmp_path}/inner/base.yaml")) == {"seed": 9}


def test_the_source_of_each_setting() -> None:
    result = layers(
        base="extends: starter\ntask: {options: {low: 2}}\nalgorithm: {recipe: grpo, beta: 0.1}",
        mine="extends: base.yaml\nsteps: 4\nalgorithm: {recipe: dapo}",
    )
    changes = Layer(source="--set", tree=parse_sets(["task.options.high=9"]))
    origins = sources((*result, changes))
    assert origins["steps"] == "mine.yaml"
    assert origins["algorithm.recipe"] == "mine.yaml"
    assert "algorithm.beta" not in origins  # grpo's, which was replaced
    assert origins["task.options"] == "--set, base.yaml"
    assert origins["rollout.prompts"] == "preset starter"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": "extends: a.yaml"}, r"a\.yaml → a\.yaml: a file cannot build on itself"),
        (
            {"a": "extends: ./b.yaml", "b": "extends: a.yaml"},
            r"^b\.yaml → a\.yaml → b\.yaml: a file cannot build on itself",
        ),
        ({"a": "extends: no.yaml"}, r"^a\.yaml: cannot read no\.yaml"),
        ({"a": "extends: no.yaml", "b": "extends: a.yaml"}, r"^b\.yaml → a\.yaml: cannot read"),
        ({"a": "extends: startr"}, "no file or preset 'startr'; did you mean starter.*run:NAME"),
        ({"a": "extends: 3"}, "extends must be a file.* got 3"),
        ({"a": "extends: ['']"}, "extends must be a file.* got ''"),
        ({"a": "step: 3", "b": "extends: a.yaml"}, r"^b\.yaml → a\.yaml: there is no setting"),
        ({"a": "steps: 3", "b": "extends: a.yaml\nseed: x"}, r"^b\.yaml: seed: must be"),
        ({"a": "- steps", "b": "extends: a.yaml"}, r"b\.yaml: a\.yaml must contain sections"),
    ],
)
def test_an_error_names_the_files_that_lead_to_it(files: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(layers(**files))


def test_a_chain_of_files_has_an_end() -> None:
    files = {f"f{n}": f"extends: f{n + 1}.yaml" for n in reversed(range(DEEPEST + 1))}
    with pytest.raises(ConfigError, match=f"more than {DEEPEST} files build on each other"):
        layers(**files)


def test_a_file_that_many_name_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number}.yaml" for number in range(24)]  # 2^24 ways lead to the last one
    for name, base in pairwise(names):
        (tmp_path / name).write_text(f"extends: [{base}, {base}]")
    (tmp_path / names[-1]).write_text("seed: 7")
    read: list[str] = []

    def counted(file: Path) -> dict[str, Any]:
        read.append(file.name)
        assert len(read) <= len(names)
        return read_yaml(file)

    monkeypatch.setattr("grpo_engine.extends.read_yaml", counted)
    layers = file_layers(tmp_path / names[0], lambda _: {})
    assert config_of(layers).seed == 7
    assert read == names
