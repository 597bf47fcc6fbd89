"""A tokenizer as `tokenizer.json` and as a GGUF file's metadata: each made from the other."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gguf import GGUFWriter

from grpo_engine.errors import ModelError
from grpo_engine.models.gguf.reader import GgufFile

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
LLAMA3_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT: Final = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
SPACE = "\u2581"  # SentencePiece's mark for a space


def _byte_level(*, use_regex: bool = True) -> dict[str, Any]:
    return {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
        "use_regex": use_regex,
    }  # fmt: skip


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _split(pattern: str) -> dict[str, Any]:
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return _sequence(cut, _byte_level(use_regex=False))


SINGLE_DIGITS: Final = _sequence({"type": "Digits", "individual_digits": True}, _byte_level())
PRE_TOKENIZERS: Final = {
    "gpt-2": _byte_level(),
    "smollm": SINGLE_DIGITS,
    "llama-bpe": _split(LLAMA3_SPLIT),
    "qwen2": _split(QWEN2_SPLIT),
}


def build(file: GgufFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of `tokenizer.json` and of `tokenizer_config.json`."""
    kind = file.metadata.get("tokenizer.ggml.model")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelError(f"{file.path} holds no tokenizer, so its model cannot read text")
    rows = file.tensors["token_embd.weight"].shape[0]
    if len(tokens) > rows or len(set(tokens)) != len(tokens):
        raise ModelError(
            f"{file.path} is damaged: {len(tokens)} tokens ({len(set(tokens))} distinct) for "
            f"{rows} embeddings"
        )
    if kind == "gpt2":
        content = _byte_pairs(file, tokens)
    elif kind == "llama":
        content = _sentence_pieces(file, tokens)
    else:
        raise ModelError(f"{file.path} has a tokenizer of type {kind!r}; gpt2 and llama are known")
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": _added(file, tokens),
        "post_processor": _begin(file, tokens), **content,
    }, _settings(file, tokens)  # fmt: skip


def end_ids(file: GgufFile) -> list[int]:
    """Tokens that end an answer: end of text, of turn, of message."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = [file.metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    return list(dict.fromkeys(int(i) for i in ids if i is not None))


def _types(file: GgufFile, tokens: list[str]) -> list[int]:
    types: list[int] = file.metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ModelError(f"{file.path} is damaged: {len(tokens)} tokens but {len(types)} types")
    return types


def _added(file: GgufFile, tokens: list[str]) -> list[dict[str, Any]]:
    return [
        {
            "id": place, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": kind in (CONTROL, UNKNOWN),
        }
        for place, (token, kind) in enumerate(zip(tokens, _types(file, tokens), strict=True))
        if kind in (CONTROL, USER, UNKNOWN)
    ]  # fmt: skip


def _byte_pairs(file: GgufFile, tokens: list[str]) -> dict[str, Any]:
    pre = str(file.metadata.get("tokenizer.ggml.pre", "gpt-2"))
    if pre not in PRE_TOKENIZERS:
        raise ModelError(
            f"{file.path} uses the pre-tokenizer {pre!r}, which is not supported; "
            f"supported: {', '.join(PRE_TOKENIZERS)}"
        )
    merges: list[str] = file.metadata.get("tokenizer.ggml.merges") or []
    if not merges or any(merge.count(" ") != 1 for merge in merges):
        raise ModelError(f"{file.path} has a byte-pair tokenizer without proper merges")
    return {
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": PRE_TOKENIZERS[pre],
        "decoder": _byte_level(),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": pre == "llama-bpe",
            "vocab": {token: place for place, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }  # fmt: skip


def _sentence_pieces(file: GgufFile, tokens: list[str]) -> dict[str, Any]:
    scores: list[float] = file.metadata.get("tokenizer.ggml.scores") or []
    if len(scores) != len(tokens):
        raise ModelError(f"{file.path} is damaged: {len(tokens)} tokens but {len(scores)} scores")
    types = _types(file, tokens)
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    prefix = [{"type": "Prepend", "prepend": SPACE}]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    adds_space = file.metadata.get("tokenizer.ggml.add_space_prefix", True)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    return {
        "normalizer": {
            "type": "Sequence", "normalizers": [*(prefix if adds_space else []), replace],
        },
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                back, {"type": "ByteFallback"}, {"type": "Fuse"}, *(strip if adds_space else []),
            ],
        },
        "model": {
            "type": "BPE", "dropout": None, "unk_token": unknown, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
            "ignore_merges": False, "vocab": {token: place for place, token in enumerate(tokens)},
            "merges": _merges(tokens, scores, types),
        },
    }  # fmt: skip


def _merges(tokens: list[str], scores: list[float], types: list[int]) -> list[list[str]]:
    """Every split of a piece into two others, best-scored pieces first."""
    places = {t: i for i, (t, k) in enumerate(zip(tokens, types, strict=True)) if k == NORMAL}
    found: list[tuple[float, int, int]] = []
    for token, place in places.items():
        for cut in range(1, len(token)):
            left, right = places.get(token[:cut]), places.get(token[cut:])
            if left is not None and right is not None:
                found.append((-scores[place], left, right))
    return [[tokens[left], tokens[right]] for _, left, right in sorted(found)]


def _begin(file: GgufFile, tokens: list[str]) -> dict[str, Any] | None:
    """A post-processor that prepends the begin token, if the model was trained with one."""
    place = file.metadata.get("tokenizer.ggml.bos_token_id")
    default = file.metadata.get("tokenizer.ggml.model") == "llama"
    if place is None or not file.metadata.get("tokenizer.ggml.add_bos_token", default):
        return None
    token = tokens[int(place)]
    first, text = (
        {"SpecialToken": {"id": token, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    )
    return {
        "type": "TemplateProcessing", "single": [first, text],
        "pair": [first, text, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {token: {"id": token, "ids": [int(place)], "tokens": [token]}},
    }  # fmt: skip


def _settings(file: GgufFile, tokens: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
        "model_max_length": int(
            file.metadata.get(f"{file.metadata['general.architecture']}.context_length", 1 << 20)
        ),
    }  # fmt: skip
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        place = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if place is not None and 0 <= int(place) < len(tokens):
            settings[f"{name}_token"] = tokens[int(place)]
    if template := file.metadata.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    return settings


def add(writer: GGUFWriter, folder: Path, config: Mapping[str, Any]) -> None:
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    model, rows = content["model"], int(config["vocab_size"])
    if model.get("type") != "BPE":
        raise ModelError(
            f"{folder} has a tokenizer of type {model.get('type')}; a GGUF file can hold BPE"
        )
    tokens, types = _listed(content, rows)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    if model.get("byte_fallback"):
        writer.add_tokenizer_model("llama")
        writer.add_token_scores(_scores(tokens, merges))
        writer.add_add_space_prefix("Prepend" in json.dumps(content.get("normalizer")))
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_pre(content, folder))
        writer.add_token_merges(merges)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    begins = content.get("post_processor") or {}
    writer.add_add_bos_token(bool(begins.get("special_tokens")))
    _add_ends(writer, config)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    template = folder / "chat_template.jinja"
    text = template.read_text(encoding="utf-8") if template.is_file() else None
    if text or isinstance(text := settings.get("chat_template"), str):
        writer.add_chat_template(text)


def _listed(content: Mapping[str, Any], rows: int) -> tuple[list[str], list[int]]:
    """Every token in the order of its id, and its type; rows without a token are unused."""
    tokens = [f"[PAD{place}]" for place in range(rows)]
    types = [UNUSED] * rows
    for token, place in content["model"]["vocab"].items():
        is_byte = content["model"].get("byte_fallback") and re.fullmatch("<0x[0-9A-F]{2}>", token)
        tokens[place], types[place] = token, BYTE if is_byte else NORMAL
    for added in content["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if added["special"] else USER
    return tokens, types


def _scores(tokens: list[str], merges: list[str]) -> list[float]:
    """A score for each piece: the earlier its merge, the higher."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault(merge.replace(" ", ""), rank)
    return [-float(ranks.get(token, len(merges))) for token in tokens]


def _pre(content: Mapping[str, Any], folder: Path) -> str:
    """The name under which GGUF files know this pre-tokenizer."""

    def known(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: known(value) for key, value in part.items() if key != "trim_offsets"}
        return [known(one) for one in part] if isinstance(part, list) else part

    found = known(content.get("pre_tokenizer"))
    for name, one in PRE_TOKENIZERS.items():
        if known(one) == found:
            return name
    raise ModelError(
        f"{folder} splits text in a way that has no name in GGUF files; "
        f"{', '.join(PRE_TOKENIZERS)} have one"
    )


def _add_ends(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """The tokens that begin a text, end an answer and fill up."""
    ends = config.get("eos_token_id")
    listed = ends if isinstance(ends, list) else [ends]
    known = [int(one) for one in listed if one is not None]
    for add_one, place in zip(
        (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id),
        known, strict=False,
    ):  # fmt: skip
        add_one(place)
    if config.get("bos_token_id") is not None:
        writer.add_bos_token_id(int(config["bos_token_id"]))
    if config.get("pad_token_id") is not None:
        writer.add_pad_token_id(int(config["pad_token_id"]))
