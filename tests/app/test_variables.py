"""Which variables of the environment each kind of child process gets."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.parse import build
from grpo_engine.config.settings import RunConfig
from grpo_engine.environments.client import EnvironmentClient, Episode
from grpo_engine.errors import ConfigError
from grpo_engine.rewards.client import RewardClient
from grpo_engine.rollouts.template_trial import Templates
from grpo_engine.sandbox.client import Sandbox, ServiceCall
from grpo_engine.tasks.base import RewardSpec, Task
from grpo_tui.app.trial.client import trial_process
from tests.patience import until

# what this process has: a service's token of the user's, and keys
USERS = {"SERVICE_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_JUDGE_KEY"}
PROGRAMS = {"WANDB_API_KEY", "HF_TOKEN", "TINKER_API_KEY"}
HARMLESS = {"PATH", "LANG", "LC_ALL", "TERM", "TMPDIR", "PYTHONPATH"}
CODE = """
import json, os
from pathlib import Path

def seen():
    "See the variables."
    return json.dumps(dict(os.environ))

def reward(completions, file, **kwargs):
    Path(file).write_text(seen())
    return [1.0] * len(completions)

class Shown:
    def reset(self, row, seed):
        return [{"role": "user", "content": seen()}]

    def step(self, answer):
        raise AssertionError

class Tools:
    def reset(self, **row):
        return seen()

    def see(self) -> str:
        "See the variables."
        return seen()
"""
AGENT = """
import json, os, sys
from pathlib import Path
from urllib.request import Request, urlopen

Path(json.load(sys.stdin)["file"]).write_text(json.dumps(dict(os.environ)))
Path.home().joinpath("left").touch()
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
data = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
urlopen(Request(url, data, headers)).read()
"""
SERVER = """
import json, os, sys

for line in sys.stdin:
    request = json.loads(line)
    if request.get("method") == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                  "serverInfo": {"name": "s", "version": "1"}}
    elif request.get("method") == "tools/list":
        with open("server.json", "w") as file:
            json.dump(dict(os.environ), file)
        result = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
    else:
        result = None
    answer = {"result": result} if result else {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": request.get("id", 0), **answer}), flush=True)
"""
RUBRIC = """
endpoint: http://127.0.0.1:9/v1
model: m
criteria: {right: It is right.}
key_variable: MY_JUDGE_KEY
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's files, and the environment."""
    for name in (*USERS, *PROGRAMS):
        monkeypatch.setenv(name, f"secret-{name}")
    for name in HARMLESS - {"PATH", "TMPDIR"}:
        monkeypatch.setenv(name, "C")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "code.py").write_text(CODE)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "rubric.yaml").write_text(RUBRIC)
    return tmp_path


def secrets(variables: dict[str, str]) -> set[str]:
    assert variables.keys() >= HARMLESS
    return {name for name in variables.keys() & {*USERS, *PROGRAMS} if variables[name]}


def process_of(sandbox: Sandbox) -> dict[str, str]:
    """The variables that a process of the sandbox was started with."""
    if sys.platform != "linux":
        pytest.skip("the variables of another process are read in /proc")
    process: Any = sandbox._process
    text = until(Path(f"/proc/{process._process.pid}/environ").read_text)
    return dict(line.split("=", 1) for line in text.split("\0") if line)


def config_of(*named: str, **task: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "task": task,
            "sandbox": {"environment": named},
            "rewards": {"functions": ["judge:rubric.yaml"]},
        }
    )


def of_reward(folder: Path, *named: str, foreign: bool = False) -> tuple[dict[str, str], ...]:
    """What a reward function got, and what its judge's process did."""
    file = folder / "reward.json"
    specs = [
        RewardSpec(name=f"{folder}/code.py:reward", options={"file": str(file)}),
        RewardSpec(name=f"judge:{folder}/rubric.yaml"),
    ]
    with RewardClient(specs, folder, 30.0, named=named, foreign=foreign) as client:
        client.score(["p"], ["c"], [[1]], {}, {"global_step": 1}, count=1)
        judges = process_of(client._sandboxes[1])
    return json.loads(file.read_text()), judges


def of_environment(
    folder: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> dict[str, str]:
    monkeypatch.chdir(folder)
    with EnvironmentClient(config, Task(name="t", train=()), folder, **options) as client:
        row = {"file": str(folder / "agent.json")}
        episode = Episode(environment="", row=row, seed=3, index=0)
        client.begin([episode])
        assert not client.last(0).error
        if client.specs[""].is_agent:
            client.finish([True])
            seen = json.loads((folder / "agent.json").read_text())
            assert not (Path.home() / "left").exists()
            return dict(seen)
        opening = episode.opening
        return dict(json.loads(opening.text or opening.messages[0]["content"]))


def test_a_reward_function_keeps_what_the_user_has_but_for_the_programs_keys(folder: Path) -> None:
    function, judges = of_reward(folder)
    assert secrets(function) == USERS - {"MY_JUDGE_KEY"}
    assert function["HOME"] == os.environ["HOME"]
    assert secrets(judges) == {"MY_JUDGE_KEY"}


def test_what_the_setting_names_reaches_a_reward_function(folder: Path) -> None:
    function, _ = of_reward(folder, "MY_JUDGE_KEY", "HF_TOKEN")
    assert secrets(function) == {*USERS, "HF_TOKEN"}


@pytest.mark.parametrize("name", ["Shown", "Tools"])
def test_tools_and_environments_keep_what_the_user_has(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    config = config_of(environment=f"code.py:{name}")
    variables = of_environment(folder, config, monkeypatch)
    assert secrets(variables) == USERS - {"MY_JUDGE_KEY"}
    assert variables["HOME"] == os.environ["HOME"]


@pytest.mark.parametrize(
    "task",
    [
        {"environment": "agent: python agent.py"},
        {"environment": "code.py:Tools", "interpreter": sys.executable},
    ],
    ids=["an agent", "another interpreter"],
)
@pytest.mark.parametrize("named", [(), ("SERVICE_TOKEN", "HF_TOKEN")], ids=["", "named"])
def test_agents_and_code_in_another_interpreter_have_a_short_list(
    folder: Path, monkeypatch: pytest.MonkeyPatch, task: Any, named: Sequence[str]
) -> None:
    variables = of_environment(folder, config_of(*named, **task), monkeypatch)
    assert secrets(variables) == set(named)
    assert Path(variables["HOME"]).parent.name.startswith("agents-") or variables["HOME"].endswith(
        ".scratch"
    )
    assert not Path(variables["HOME"]).exists()


@pytest.mark.parametrize("named", [(), ("SERVICE_TOKEN",)], ids=["", "named"])
def test_a_server_of_tools_beside_the_users_environment_has_a_short_list(
    folder: Path, monkeypatch: pytest.MonkeyPatch, named: Sequence[str]
) -> None:
    pytest.importorskip("mcp")
    config = config_of(*named, environment="code.py:Tools", tools=["mcp: python server.py"])
    assert secrets(of_environment(folder, config, monkeypatch)) == USERS - {"MY_JUDGE_KEY"}
    variables = json.loads((folder / "server.json").read_text())
    assert secrets(variables) == set(named)
    assert variables["HOME"].endswith(".scratch")
    assert not Path(variables["HOME"]).exists()


def test_an_agent_beside_the_users_environment_has_a_short_list(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"a": "agent: python agent.py", "b": "code.py:Shown"}
    monkeypatch.chdir(folder)
    with EnvironmentClient(
        config_of(environment=names), Task(name="t", train=()), folder
    ) as client:
        row = {"file": str(folder / "agent.json")}
        episodes = [Episode(environment=n, row=row, seed=3, index=i) for i, n in enumerate(names)]
        client.begin(episodes)
        client.finish([True, True])
    assert not secrets(json.loads((folder / "agent.json").read_text()))
    assert secrets(json.loads(episodes[1].opening.messages[0]["content"]))


def test_code_of_a_run_that_began_elsewhere_has_a_short_list(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, judges = of_reward(folder, "SERVICE_TOKEN", foreign=True)
    assert secrets(function) == {"SERVICE_TOKEN"}
    assert function["HOME"] != os.environ["HOME"]
    assert secrets(judges) == {"SERVICE_TOKEN", "MY_JUDGE_KEY"}
    config = config_of(environment="code.py:Shown")
    assert not secrets(of_environment(folder, config, monkeypatch, foreign=True))


def test_a_helper_with_a_model_may_download_with_the_users_token() -> None:
    with trial_process() as sandbox:
        sandbox._begin()
        variables = process_of(sandbox)
    assert secrets(variables) == {*USERS, *PROGRAMS}
    assert variables["HF_HUB_OFFLINE"] == "1"


def test_a_foreign_process_has_what_its_caller_adds() -> None:
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "ADDED": "yes"}
    service = f"{Templates.__module__}:Templates"
    with Sandbox(service, None, "added", env=env, foreign=True) as sandbox:
        sandbox._begin()
        variables = process_of(sandbox)
    assert not secrets(variables)
    assert (variables["ADDED"], variables["HF_HUB_OFFLINE"]) == ("yes", "1")
    assert not Path(variables["HOME"]).exists()


def test_a_template_of_a_model_is_tried_without_the_users_variables() -> None:
    call = ServiceCall("seen", {}, 30.0)
    with Sandbox("tests.app.test_variables:Seen", None, "seen", foreign=True) as sandbox:
        assert not secrets(sandbox.call(call).value_or(ValueError))


class Seen:
    """A service that says what it has."""

    def __init__(self, _server: object) -> None: ...

    def seen(self) -> dict[str, str]:
        return dict(os.environ)


@pytest.mark.parametrize("value", ["sk-live-0123456789", "A=B", "", "hf_abcdEFGH", "X" * 99])
def test_a_value_in_place_of_a_name_is_refused_without_being_repeated(value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build({"sandbox": {"environment": [value]}})
    assert "names of variables" in str(refused.value) or not value
    assert not value or value not in str(refused.value)


def test_settings_of_before_have_no_named_variables() -> None:
    assert build({"steps": 3}).sandbox.environment == ()
