"""A policy whose weights are on a server: its tokenizer and its limits are here, nothing else."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mlx import nn

from grpo_engine.config.settings import ModelConfig
from grpo_engine.policy.load import context_length, end_tokens, number
from grpo_engine.policy.policy import Policy, Trained, Weights
from grpo_engine.policy.source import check_config, find_folder, opening
from grpo_engine.policy.tokenizer import load_tokenizer

ASSUMED: Final = "bfloat16"  # the format that tolerances are for; a server does not tell its own


@dataclass(slots=True, kw_only=True)
class RemotePolicy(Policy):
    """What the engine asks of a policy, of one that has no weights here."""

    scores_base: bool = False  # whether the base model scores, which is the reference

    @property
    def has_weights(self) -> bool:
        return False

    @property
    def gap_remedy(self) -> str:
        return (
            f"Is model.path {self.config.path} the model that the server has, with the same "
            "tokenizer, and does it sample and train in the same number format?"
        )

    @contextmanager
    def as_reference(self) -> Iterator[None]:
        """Score with the base model within the block."""
        self.scores_base = True
        try:
            yield
        finally:
            self.scores_base = False

    @contextmanager
    def for_sampling(self, weights: Weights | None = None) -> Iterator[None]:
        """Sampler and trainer are two programs of the server, with the same weights."""
        assert weights is None
        yield


def load_remote_policy(config: ModelConfig, into: Path) -> RemotePolicy:
    """The tokenizer and the configuration of a model; of a hub id, only these are fetched.

    They go to `into`, since in the hub's cache they would be taken for the model.
    """
    folder = find_folder(config.path, into, with_tokenizer=True)
    check_config(folder)
    settings: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with opening(str(folder)):
        tokenizer = load_tokenizer(
            folder, trust=config.trust_remote_code, end_ids=settings.get("eos_token_id")
        )
    model = nn.Module()
    return RemotePolicy(
        config=config,
        folder=folder,
        module=Trained(model, None),
        tokenizer=tokenizer,
        adapter={},
        end_ids=end_tokens(tokenizer, settings),
        pad_id=int(tokenizer.pad_token_id or 0),
        vocabulary=number(settings, "vocab_size") or len(tokenizer),
        context_length=context_length(settings),
        dtype=ASSUMED,
        parts=None,
        prefix_caches=None,
        head_is_trained=False,
        fingerprint=_fingerprint(folder),
        grad_checkpoint=True,  # no layers are here to be changed
    )


def _fingerprint(folder: Path) -> str:
    """A digest of the tokenizer and the configuration, which decide the tokens of a run."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.json")):
        if not file.name.endswith(".index.json"):
            digest.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
