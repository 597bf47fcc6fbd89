"""GGUF files become complete model folders, or none at all."""

import struct
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from mlx_lm import load

from grpo_engine.errors import ModelError
from grpo_engine.models import folders
from grpo_engine.models.from_gguf import import_gguf
from grpo_engine.models.gguf.reader import open_gguf
from tests.engine.models.gguf_files import tiny_metadata, tiny_tensors, write_gguf, write_tiny
from tests.engine.tiny import END, STOP


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_tiny(tmp_path_factory.mktemp("gguf"))


def test_an_imported_model_is_the_one_it_was_made_of(
    tiny: tuple[Path, Path], tmp_path: Path
) -> None:
    source, file = tiny
    made = import_gguf(file, tmp_path / "made")
    assert (made.architecture, made.formats, made.parameters) == ("llama", ("F32",), 26_976)
    ours, tokenizer, *_ = load(str(made.folder))
    theirs, original, *_ = load(str(source))
    ids = original.encode("<user>What is 12 + 30?<assistant>", add_special_tokens=False)
    assert tokenizer.encode("<user>What is 12 + 30?<assistant>", add_special_tokens=False) == ids
    assert tokenizer.eos_token_ids == {END, STOP}
    assert tokenizer.chat_template == original.chat_template
    assert mx.allclose(ours(mx.array([ids])), theirs(mx.array([ids])), atol=1e-5)


def test_weights_of_several_shards_are_found_again(
    tiny: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        folders, "make_shards", lambda weights: [{name: weights[name]} for name in weights]
    )
    made = import_gguf(tiny[1], tmp_path / "made", dtype="float16")
    assert len(list(made.folder.glob("model-*-of-*.safetensors"))) > 2
    assert made.bytes == 2 * made.parameters
    load(str(made.folder))


def test_quantised_weights_are_read_and_formats_without_a_reader_are_named(
    tiny: tuple[Path, Path],
) -> None:
    values = np.arange(64, dtype=np.float32)
    file = open_gguf(tiny[1])
    tensor = file.tensors["output_norm.weight"]._replace(
        data=quantize(values, GGMLQuantizationType.Q8_0),
        tensor_type=GGMLQuantizationType.Q8_0,
        shape=np.array([64], np.uint64),
    )
    file.tensors["output_norm.weight"] = tensor
    # a step of q8_0 is the largest of 32 values / 127
    assert np.abs(file.tensor("output_norm.weight") - values).max() < 63 / 127
    file.tensors["output_norm.weight"] = tensor._replace(tensor_type=GGMLQuantizationType.Q8_K)
    with pytest.raises(ModelError, match=r"holds output_norm\.weight in the number format Q8_K"):
        file.tensor("output_norm.weight")


def refused(file: Path, folder: Path, message: str) -> None:
    """Assert that the import fails with this message and leaves nothing behind."""
    before = sorted(folder.parent.iterdir())
    with pytest.raises(ModelError, match=message) as caught:
        import_gguf(file, folder)
    assert str(file) in str(caught.value)
    assert sorted(folder.parent.iterdir()) == before


def test_a_file_cut_anywhere_is_refused_and_leaves_nothing(
    tiny: tuple[Path, Path], tmp_path: Path
) -> None:
    whole = tiny[1].read_bytes()
    cut = tmp_path / "cut.gguf"
    (tmp_path / "out").mkdir()
    for size in [*range(0, 24), *range(24, len(whole) - 1, 997), len(whole) - 1]:
        cut.write_bytes(whole[:size])
        message = "it is cut off at byte" if size else "cannot be read as GGUF"
        refused(cut, tmp_path / "out" / "made", message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "bert"}, "architecture bert; llama, qwen2, qwen3 can be"),
        ({"general.architecture": None}, "architecture unknown"),
        ({"llama.embedding_length": None}, "lacks llama.embedding_length"),
        ({"llama.embedding_length": 48}, "does not give a working model"),
        ({"llama.block_count": 3}, "does not give a working model"),
        ({"general.alignment": "no number"}, "as GGUF: Bad type for general.alignment"),
        ({"general.alignment": 0}, "as GGUF: Invalid alignment"),
        ({"llama.attention.head_count": 0}, "is damaged: attention.head_count is 0, not a number"),
        ({"llama.embedding_length": 0}, "is damaged: embedding_length is 0, not a number from 1"),
        ({"llama.block_count": "2"}, "is damaged: block_count is '2', not a number from 1"),
        ({"llama.attention.head_count": 5}, "is damaged: blk.*.attn_q.weight has 32 rows, 5 heads"),
        ({"llama.rope.scaling.type": "yarn"}, "uses the rope scaling 'yarn'"),
        ({"tokenizer.ggml.tokens": None}, "holds no tokenizer"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "2 tokens .1 distinct. for 262 embeddings"),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer of type 'bert'; gpt2 and llama are known"),
        ({"tokenizer.ggml.pre": "odd"}, "uses the pre-tokenizer 'odd'"),
        ({"tokenizer.ggml.merges": ["ab"]}, "without proper merges"),
        (
            {"tokenizer.ggml.merges": ["a c"]},
            "has a damaged tokenizer: .*Token `ac` out of vocab",
        ),
        ({"tokenizer.ggml.token_type": [1]}, "262 tokens but 1 types"),
        (
            {"tokenizer.ggml.eos_token_id": None, "tokenizer.ggml.eot_token_id": None},
            "has no end token",
        ),
    ],
)
def test_a_file_that_makes_no_model_is_refused_with_the_reason(
    tiny: tuple[Path, Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    file = write_gguf(tmp_path / "odd.gguf", tiny_metadata(**changes), tiny_tensors(tiny[0]))
    refused(file, tmp_path / "made", message)


def test_lists_nested_without_end_are_refused(tmp_path: Path) -> None:
    """5,000 lists of one list, each 12 bytes: the type of a list (9) and its length."""
    lists = struct.pack("<IQ", 9, 1) * 5_000 + struct.pack("<IQI", 4, 1, 7)
    key = b"general.odd"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key
    file = tmp_path / "nested.gguf"
    file.write_bytes(head + struct.pack("<I", 9) + lists)
    refused(file, tmp_path / "made", "cannot be read as GGUF: maximum recursion depth exceeded")


def test_wrong_tensors_are_refused_by_name(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    tensors = tiny_tensors(tiny[0])
    odd, folder = tmp_path / "odd.gguf", tmp_path / "made"
    write_gguf(odd, tiny_metadata(), {**tensors, "blk.0.ssm_a.weight": np.ones(2)})
    refused(odd, folder, "holds the tensor blk.0.ssm_a.weight, which no dense llama model has")
    write_gguf(odd, tiny_metadata(), {**tensors, "output_norm.weight": np.full(32, np.nan)})
    refused(odd, folder, "the model gives no finite numbers")
    write_gguf(odd, tiny_metadata(), tensors, kind=99)
    refused(odd, folder, "as GGUF: .*99.* is not a valid GGMLQuantizationType")
    write_gguf(odd, tiny_metadata(), {**tensors, "output_norm.weight": np.ones((0, 32))})
    refused(odd, folder, "does not give a working model")
    write_gguf(odd, tiny_metadata(), tensors, version=1)
    refused(odd, folder, "version 1 which we cannot handle")
    del tensors["token_embd.weight"]
    refused(write_gguf(odd, tiny_metadata(), tensors), folder, "no token_embd.weight")


def test_what_is_no_file_or_no_gguf_is_named(tmp_path: Path) -> None:
    refused(tmp_path / "none.gguf", tmp_path / "made", "cannot be read: No such file")
    (tmp_path / "text.gguf").write_text("hello, this is text")
    refused(tmp_path / "text.gguf", tmp_path / "made", "as GGUF: GGUF magic invalid")


def test_a_folder_that_exists_is_kept(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(ModelError, match="exists; remove it or choose another folder"):
        import_gguf(tiny[1], tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_disk_without_room_is_named_with_what_is_missing(
    tiny: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        free = 1000

    monkeypatch.setattr("shutil.disk_usage", lambda _: Full)
    with pytest.raises(ModelError, match="use --dtype float16"):
        import_gguf(tiny[1], tmp_path / "made")
    assert not list(tmp_path.iterdir())
