"""A tokenizer as `tokenizer.json` and as a GGUF file's metadata: each made from the other."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gguf import GGUFWriter
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from grpo_engine.errors import ModelError
from grpo_engine.models.folders import read_json
from grpo_engine.models.gguf.reader import GgufFile

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
ENDS = ("eos", "eot", "eom")  # end a text, a turn and a message
LLAMA3_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT: Final = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
SPACE = "\u2581"  # SentencePiece's mark for a space


def _split(pattern: str) -> pre_tokenizers.Sequence:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


BYTE_LEVEL: Final = pre_tokenizers.ByteLevel(add_prefix_space=False)
PRE_TOKENIZERS: Final[Mapping[str, pre_tokenizers.PreTokenizer]] = {
    "gpt-2": BYTE_LEVEL,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTE_LEVEL]),
    "llama-bpe": _split(LLAMA3_SPLIT),
    "qwen2": _split(QWEN2_SPLIT),
}


def build(file: GgufFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of `tokenizer.json` and of `tokenizer_config.json`."""
    model = file.metadata.get("tokenizer.ggml.model")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelError(f"{file.path} holds no tokenizer, so its model cannot read text")
    rows = file.shape("token_embd.weight")[0]
    if len(tokens) > rows or len(set(tokens)) != len(tokens):
        raise ModelError(
            f"{file.path} is damaged: {len(tokens)} tokens ({len(set(tokens))} distinct) for "
            f"{rows} embeddings"
        )
    builders = {"gpt2": _byte_pairs, "llama": _sentence_pieces}
    if model not in builders:
        raise ModelError(f"{file.path} has a tokenizer of type {model!r}; gpt2 and llama are known")
    types = _types(file, tokens)
    try:
        tokenizer = builders[model](file, tokens, types)
        tokenizer.add_tokens(
            [
                AddedToken(token, normalized=False, special=type_ != USER)
                for token, type_ in zip(tokens, types, strict=True)
                if type_ in (CONTROL, USER, UNKNOWN)
            ]
        )
        if (begin := _begin(file, tokens)) is not None:
            tokenizer.post_processor = begin
    except ModelError:
        raise
    except Exception as error:  # tokenizers raises nothing narrower
        raise ModelError(f"{file.path} has a damaged tokenizer: {error}") from error
    return json.loads(tokenizer.to_str()), _settings(file, tokens)


def end_ids(file: GgufFile) -> list[int]:
    """Tokens that end an answer: end of text, of turn, of message."""
    ids = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ENDS]
    return list(dict.fromkeys(index for index in ids if index is not None))


def _types(file: GgufFile, tokens: list[str]) -> list[int]:
    types: list[int] = file.metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ModelError(f"{file.path} is damaged: {len(tokens)} tokens but {len(types)} types")
    return types


def _byte_pairs(file: GgufFile, tokens: list[str], _types: list[int]) -> Tokenizer:
    pre = str(file.metadata.get("tokenizer.ggml.pre", "gpt-2"))
    if pre not in PRE_TOKENIZERS:
        raise ModelError(
            f"{file.path} uses the pre-tokenizer {pre!r}, which is not supported; "
            f"supported: {', '.join(PRE_TOKENIZERS)}"
        )
    merges: list[str] = file.metadata.get("tokenizer.ggml.merges") or []
    if not merges or any(merge.count(" ") != 1 for merge in merges):
        raise ModelError(f"{file.path} has a byte-pair tokenizer without proper merges")
    pairs = [(left, right) for left, right in map(str.split, merges)]
    tokenizer = Tokenizer(models.BPE(_ids(tokens), pairs, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_pieces(file: GgufFile, tokens: list[str], types: list[int]) -> Tokenizer:
    scores: list[float] = file.metadata.get("tokenizer.ggml.scores") or []
    if len(scores) != len(tokens):
        raise ModelError(f"{file.path} is damaged: {len(tokens)} tokens but {len(scores)} scores")
    unknown = tokens[types.index(UNKNOWN)] if UNKNOWN in types else None
    merges = _merges(tokens, scores, types)
    model = models.BPE(_ids(tokens), merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    steps: list[Any] = [normalizers.Replace(" ", SPACE)]
    decoding = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if file.metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(SPACE))
        decoding.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer, tokenizer.decoder = (
        normalizers.Sequence(steps),
        decoders.Sequence(decoding),
    )
    return tokenizer


def _ids(tokens: list[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate(tokens)}


def _merges(tokens: list[str], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """Every split of a piece into two others, best-scored pieces first."""
    ids = {t: i for i, (t, type_) in enumerate(zip(tokens, types, strict=True)) if type_ == NORMAL}
    splits: list[tuple[float, int, int]] = []
    for token, index in ids.items():
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                splits.append((-scores[index], left, right))
    return [(tokens[left], tokens[right]) for _, left, right in sorted(splits)]


def _begin(file: GgufFile, tokens: list[str]) -> processors.TemplateProcessing | None:
    """A post-processor that prepends the begin token, if the model was trained with one."""
    index = file.metadata.get("tokenizer.ggml.bos_token_id")
    default = file.metadata.get("tokenizer.ggml.model") == "llama"
    if index is None or not file.metadata.get("tokenizer.ggml.add_bos_token", default):
        return None
    token = tokens[index]
    return processors.TemplateProcessing(
        [token, "$A"], [token, "$A", "$B"], special_tokens=[(token, index)]
    )


def _settings(file: GgufFile, tokens: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(
            file.metadata.get(f"{file.metadata['general.architecture']}.context_length", 1 << 20)
        ),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None and 0 <= index < len(tokens):
            settings[f"{name}_token"] = tokens[index]
    if template := file.metadata.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    return settings


def add(writer: GGUFWriter, folder: Path, config: Mapping[str, Any]) -> None:
    content = read_json(folder / "tokenizer.json")
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
    settings = read_json(folder / "tokenizer_config.json")
    template = folder / "chat_template.jinja"
    text = template.read_text(encoding="utf-8") if template.is_file() else None
    if text or isinstance(text := settings.get("chat_template"), str):
        writer.add_chat_template(text)


def _listed(content: Mapping[str, Any], rows: int) -> tuple[list[str], list[int]]:
    """Every token in the order of its id, and its type; rows without a token are unused."""
    tokens = [f"[PAD{index}]" for index in range(rows)]
    types = [UNUSED] * rows
    for token, index in content["model"]["vocab"].items():
        is_byte = content["model"].get("byte_fallback") and re.fullmatch("<0x[0-9A-F]{2}>", token)
        tokens[index], types[index] = token, BYTE if is_byte else NORMAL
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

    def comparable(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: comparable(part[key]) for key in part if key != "trim_offsets"}
        return list(map(comparable, part)) if isinstance(part, list) else part

    pre_tokenizer = comparable(content.get("pre_tokenizer"))
    for name, supported in PRE_TOKENIZERS.items():
        if comparable(json.loads(supported.__getstate__())) == pre_tokenizer:
            return name
    raise ModelError(
        f"{folder} splits text in a way that has no name in GGUF files; "
        f"{', '.join(PRE_TOKENIZERS)} have one"
    )


def _add_ends(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """The tokens that begin a text, end an answer and fill up."""
    ends = config.get("eos_token_id")
    ids = dict(zip(ENDS, ends if isinstance(ends, list) else [ends], strict=False))
    ids |= {"bos": config.get("bos_token_id"), "padding": config.get("pad_token_id")}
    for name, index in ids.items():
        if index is not None:
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", index)
