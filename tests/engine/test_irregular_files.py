"""A pipe or a device in place of a model's file is refused before it is opened."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_engine.config.settings import ModelConfig
from grpo_engine.errors import CheckpointError, ModelError
from grpo_engine.models.from_gguf import import_gguf
from grpo_engine.paths import irregular_file
from grpo_engine.policy.embedded import EMBEDDED
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.source import find_folder
from grpo_engine.run import checkpoint
from grpo_tui.app.cli.verbs.models import _row

pytestmark = pytest.mark.timeout(60)  # reading a pipe would wait for ever


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        before = Path.cwd()
        os.chdir(path.parent)  # names of sockets are short
        server.bind(path.name)
        os.chdir(before)


def model(folder: Path) -> Path:
    shutil.copytree(EMBEDDED["starter"], folder)
    return folder


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize(
    ("make", "kind"), [(os.mkfifo, "a pipe"), (device, "a device"), (listening, "a socket")]
)
def test_a_model_is_refused_by_whatever_opens_it(
    tmp_path: Path, name: str, make: Callable[[Path], None], kind: str
) -> None:
    folder = model(tmp_path / "model")
    (folder / name).unlink()
    make(folder / name)
    message = f"{name} is {kind}, not a file; get the model again"
    with pytest.raises(ModelError, match=message):
        load_policy(ModelConfig(path=str(folder)), seed=0)
    with pytest.raises(ModelError, match=message):
        find_folder(str(folder))
    assert _row("model", folder, "imported")["type"] == "damaged"


def test_an_adapter_with_a_pipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    os.mkfifo(tmp_path / "adapters.safetensors")
    with pytest.raises(ModelError, match=r"model\.adapter .* is a pipe, not a file"):
        load_policy(ModelConfig(adapter=str(tmp_path)), seed=0)


def test_a_checkpoint_with_a_pipe_is_refused_and_an_older_one_taken(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, tensors={}, state={})
    for step, name in ((2, "adapters.safetensors"), (3, checkpoint.STATE)):
        file = checkpoint.folder(tmp_path, step) / name
        file.unlink(missing_ok=True)
        os.mkfifo(file)
        with pytest.raises(CheckpointError, match="is a pipe, not a file; resume an older"):
            checkpoint.load(tmp_path, step)
    newest, problems = checkpoint.latest(tmp_path)
    assert newest is not None
    assert (newest.step, len(problems)) == (1, 2)


def test_a_pipe_is_no_gguf_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(ModelError, match="is a pipe, not a file; give a GGUF file"):
        import_gguf(tmp_path / "model.gguf", tmp_path / "model")


def test_files_folders_and_dangling_links_are_regular(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    (folder / "link").symlink_to("nowhere")
    (folder / "templates").mkdir()
    assert irregular_file(folder) == irregular_file(tmp_path / "absent") == ""
    os.mkfifo(folder / "templates" / "tool.jinja")
    assert irregular_file(folder).endswith("templates/tool.jinja is a pipe, not a file")
