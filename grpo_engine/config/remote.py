"""Settings that a run with its weights on a server cannot have: the reason and the remedy of each.

A server gives log-probabilities of given tokens and samples of its own distribution, and takes a
gradient to log-probabilities. Everything else is refused before anything is sent.
"""

import ipaddress
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from grpo_engine.config.recipes import Recipe
from grpo_engine.errors import quoted

HOSTED: Final = "tinker"  # the `url` of the hosted service

ENTROPY: Final = "a server gives log-probabilities of the sampled tokens and no entropy"
OWN_LORA: Final = "the server decides which layers get LoRA, and how it is scaled"
NO_WEIGHTS: Final = "the weights are on the server"
DISTRIBUTION: Final = (
    "a server samples from its whole distribution at temperature 1 and gives log-probabilities of "
    "that one"
)


class Refusal(NamedTuple):
    """A setting, when it is refused, why, and the value that is possible."""

    setting: str
    applies: Callable[[Any, Recipe], bool]  # of the settings and their recipe
    reason: str
    remedy: str


def _changed(section: str, name: str, reason: str) -> Refusal:
    """A setting that has to stay at its default."""

    def applies(config: Any, _recipe: Recipe) -> bool:
        part = getattr(config, section)
        return bool(getattr(part, name) != type(part).model_fields[name].default)

    return Refusal(f"{section}.{name}", applies, reason, "leave it out")


def _option(section: str, name: str, mapping: str, reason: str) -> Refusal:
    def applies(config: Any, _recipe: Recipe) -> bool:
        return name in getattr(getattr(config, section), mapping)

    return Refusal(f"{section}.{mapping}.{name}", applies, reason, "leave it out")


def _recipe(name: str, reason: str, remedy: str, applies: Callable[[Recipe], bool]) -> Refusal:
    return Refusal(name, lambda _, recipe: applies(recipe), reason, remedy)


REFUSALS: Final = (
    _recipe(
        "algorithm.signal",
        "a critic reads hidden states, and a server gives none",
        "choose another recipe than one with signal gae",
        lambda r: r.has_critic,
    ),
    _recipe(
        "algorithm.entropy_bonus",
        ENTROPY,
        "set it to 0, without an entropy_target",
        lambda r: r.entropy_bonus > 0 or r.entropy_target is not None,
    ),
    _recipe(
        "algorithm.entropy_top_quantile",
        ENTROPY,
        "set it to 1",
        lambda r: r.entropy_top_quantile < 1,
    ),
    _recipe(
        "algorithm",
        f"a function of yours reads entropy_BT, and {ENTROPY}",
        "choose a function that does not",
        lambda r: r.reads("entropy_BT"),
    ),
    _recipe(
        "algorithm.ref_refresh_every",
        "the reference is the base model for the whole run",
        "set it to 0",
        lambda r: r.ref_refresh_every > 0,
    ),
    _recipe(
        "algorithm.options.sampler_sync_every",
        "samples come from the current weights, and no older ones are scored",
        "set it to 1",
        lambda r: r.sampler_sync_every > 1,
    ),
    Refusal(
        "stop_when",
        lambda config, _: "entropy" in config.stop_when,
        ENTROPY,
        "name another metric",
    ),
    Refusal(
        "rollout.temperature",
        lambda config, _: config.training.temperature != 1,
        DISTRIBUTION,
        "set it to 1; evaluation.sampling may have another one",
    ),
    *(_changed("rollout", name, DISTRIBUTION) for name in ("top_p", "top_k", "think_budget")),
    *(
        _option("rollout", name, "options", DISTRIBUTION)
        for name in ("min_p", "repetition_penalty", "ignore_end")
    ),
    *(_option("evaluation", name, "sampling", DISTRIBUTION) for name in ("top_p", "top_k")),
    _changed("rollout", "max_rows", "the server decides how many rows it decodes at a time"),
    Refusal(
        "model.tuning",
        lambda config, _: config.model.tuning != "lora",
        "a server trains LoRA",
        "set it to lora",
    ),
    *(_changed("model", name, OWN_LORA) for name in ("lora_layers", "lora_keys", "lora_scale")),
    *(
        _changed("model", name, NO_WEIGHTS)
        for name in ("adapter", "dtype", "quantized", "compute", "kv_bits", "grad_checkpoint")
    ),
    Refusal(
        "optimizer.name",
        lambda config, _: config.optimizer.name not in ("adamw", "adam"),
        "a server's optimiser is Adam",
        "set it to adamw",
    ),
    *(_changed("optimizer", name, NO_WEIGHTS) for name in ("start", "micro_rows")),
)


def address_problem(url: str, *, insecure: bool) -> str:
    """Why a run sends nothing to this address; empty if it may."""
    if url in ("", HOSTED):
        return ""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        is_reachable = bool(host) and parts.port != 0  # a port that is no number raises
    except ValueError as error:
        return f"{quoted(url)} is no address: {error}"
    if parts.username or parts.password or parts.query or parts.fragment:
        return (
            "it holds more than an address; write https://host:port, and name the variable of a "
            "key in remote.key_env"
        )
    if parts.scheme not in ("http", "https") or not is_reachable:
        return (
            f"{quoted(url)} is no address; write https://host:port, or `{HOSTED}` for the hosted "
            "service"
        )
    if parts.scheme == "http" and not (is_here(host) or insecure):
        return (
            f"{url} sends prompts, answers and a key readable over the network; use https, a "
            "tunnel (ssh -L), or remote.insecure true in a network that you trust"
        )
    return ""


def is_here(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refused(config: Any, recipe: Recipe) -> Iterator[tuple[str, str]]:
    """The settings that a run on a server cannot have, each with its sentence."""
    for refusal in REFUSALS:
        if refusal.applies(config, recipe):
            yield (
                refusal.setting,
                f"{refusal.setting} cannot be used with remote.url: {refusal.reason}; "
                f"{refusal.remedy}",
            )
