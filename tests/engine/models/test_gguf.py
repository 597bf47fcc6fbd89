"""GGUF files become complete model folders, or none at all."""

import hashlib
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import load

from grpo_engine.errors import ModelError
from grpo_engine.models import folders
from grpo_engine.models.from_gguf import import_gguf
from grpo_engine.models.gguf.blocks import block, dequantise, readable
from tests.engine.models.gguf_files import tiny_metadata, tiny_tensors, write_gguf, write_tiny
from tests.engine.tiny import END, STOP

# Shortened SHA-256 of the gguf package's result for 64 random blocks (seed: the format's number)
BY_GGUF = {
    "Q4_0": "033ddebcb7ce1408",
    "Q4_1": "5d75c054166180ae",
    "Q5_0": "d00ca522ef97a5a7",
    "Q5_1": "e4668ef1cfb1bd95",
    "Q8_0": "e8d532f963dcea1c",
    "Q2_K": "852138fc9db77d11",
    "Q3_K": "c1aa4d2ef42b4b4d",
    "Q4_K": "5d14170678ce77e1",
    "Q5_K": "978bc23709a699f5",
    "Q6_K": "3fc57f2f8bf73872",
    "BF16": "099b912bafa75310",
}


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
    monkeypatch.setattr(folders, "SHARD_BYTES", 20_000)
    made = import_gguf(tiny[1], tmp_path / "made", dtype="float16")
    assert len(list(made.folder.glob("model-*-of-*.safetensors"))) > 2
    assert made.bytes == 2 * made.parameters
    load(str(made.folder))


@pytest.mark.parametrize("name", BY_GGUF)
def test_number_formats_are_read_as_the_gguf_package_reads_them(name: str) -> None:
    by_name = {form.name: kind for kind in range(64) if (form := block(kind)) is not None}
    kind = by_name[name]
    form = block(kind)
    assert form is not None
    raw = np.random.default_rng(kind).integers(0, 256, (64, form.size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        found = dequantise(raw, kind)
    assert found.shape == (64, form.elements)
    plain = np.nan_to_num(found, nan=0, posinf=1, neginf=-1) + np.float32(0)
    assert hashlib.sha256(plain.tobytes()).hexdigest()[:16] == BY_GGUF[name]


def test_formats_of_fewer_bits_are_read_and_those_of_the_quantiser_alone_are_not() -> None:
    assert {"IQ4_XS", "IQ2_XXS", "MXFP4", *BY_GGUF} <= set(readable())
    assert not {"Q8_1", "Q8_K", "I8"} & set(readable())


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
        refused(cut, tmp_path / "out" / "made", "is cut off" if size >= 4 else "is not a GGUF file")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "bert"}, "architecture bert; llama, qwen2, qwen3 can be"),
        ({"general.architecture": None}, "architecture unknown"),
        ({"llama.embedding_length": None}, "lacks llama.embedding_length"),
        ({"llama.embedding_length": 48}, "does not give a working model"),
        ({"llama.block_count": 3}, "does not give a working model"),
        ({"general.alignment": "no number"}, "general.alignment is 'no number'"),
        ({"general.alignment": 0}, "general.alignment is 0"),
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


def test_wrong_tensors_are_refused_by_name(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    tensors = tiny_tensors(tiny[0])
    odd, folder = tmp_path / "odd.gguf", tmp_path / "made"
    write_gguf(odd, tiny_metadata(), {**tensors, "blk.0.ssm_a.weight": np.ones(2)})
    refused(odd, folder, "holds the tensor blk.0.ssm_a.weight, which no dense llama model has")
    write_gguf(odd, tiny_metadata(), {**tensors, "output_norm.weight": np.full(32, np.nan)})
    refused(odd, folder, "the model gives no finite numbers")
    write_gguf(odd, tiny_metadata(), tensors, kind=99)
    refused(odd, folder, "in the number format 99, which cannot be read; formats that can: F32")
    write_gguf(odd, tiny_metadata(), {**tensors, "output_norm.weight": np.ones((0, 32))})
    refused(odd, folder, r"the shape of output_norm.weight, \(0, 32\), does not fill blocks of 1")
    write_gguf(odd, tiny_metadata(), tensors, version=1)
    refused(odd, folder, "is of GGUF version 1; versions 2 and 3 can be read")
    del tensors["token_embd.weight"]
    refused(write_gguf(odd, tiny_metadata(), tensors), folder, "no token_embd.weight")


def test_what_is_no_file_or_no_gguf_is_named(tmp_path: Path) -> None:
    refused(tmp_path / "none.gguf", tmp_path / "made", "cannot be read: No such file")
    (tmp_path / "text.gguf").write_text("hello, this is text")
    refused(tmp_path / "text.gguf", tmp_path / "made", "is not a GGUF file: it does not begin with")


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
