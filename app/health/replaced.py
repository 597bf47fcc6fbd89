"""Parts of MLX, mlx-lm and Textual that we replace, or use although they are private.

Any release of these libraries may break them. `REPLACED` lists them all: what is replaced, where,
why, which test notices that it broke, and when the replacement can go.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from grpo_tui.app.health.checks import Check

TESTED: Final = {"mlx": "0.32.4", "mlx-lm": "0.32.2", "textual": "8.2.8"}
"""As in constraints.txt."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """A part of a library, and the file of ours that replaces or uses it."""

    package: str
    part: str  # `module:name`, or `library:symbol` of native code
    file: str
    why: str
    test: str
    until: str


REPLACED: Final = (
    Replacement(
        "mlx",
        "mlx.core:fast.scaled_dot_product_attention",
        "grpo_engine/policy/attention.py",
        "its gradient keeps the scores of all queries and keys of a layer",
        "tests/engine/policy/test_attention.py",
        "MLX's gradient of attention keeps none on any device",
    ),
    Replacement(
        "mlx",
        "libmlx.so:cblas_sgemm",
        "grpo_engine/cpu/relocations.py",
        "the wheel for Linux processors brings the reference BLAS, 10 to 60 times slower",
        "tests/engine/cpu/test_blas.py",
        "the wheel brings an optimised BLAS, or lets one be chosen",
    ),
    Replacement(
        "mlx",
        "mlx.nn:Module.__call__",
        "grpo_engine/policy/checkpointing.py",
        "`mx.checkpoint` runs a layer again on caches that its first run has changed",
        "tests/engine/policy/test_passes.py",
        "MLX checkpoints a layer with the caches that it was given",
    ),
    Replacement(
        "mlx",
        "mlx.core:gather_mm",
        "grpo_engine/policy/activations.py",
        "its gradient cannot be exported; a stand-in is there while a model is traced",
        "tests/engine/policy/test_activations.py",
        "`mx.export_function` exports custom gradients",
    ),
    Replacement(
        "mlx",
        "mlx.core:contiguous",
        "grpo_engine/policy/activations.py",
        "as `gather_mm`",
        "tests/engine/policy/test_activations.py",
        "as `gather_mm`",
    ),
    Replacement(
        "mlx",
        "mlx.nn:softplus",
        "grpo_engine/policy/activations.py",
        "as `gather_mm`",
        "tests/engine/policy/test_activations.py",
        "as `gather_mm`",
    ),
    Replacement(
        "mlx",
        "mlx.optimizers:Optimizer.apply_single",
        "grpo_engine/policy/optimizer.py",
        "weight decay is one number for matrices, norms and biases",
        "tests/engine/policy/test_optimizer.py",
        "MLX's optimisers take the parameters that do not decay",
    ),
    Replacement(
        "mlx-lm",
        "mlx_lm.models.gated_delta:gated_delta_ops",
        "grpo_engine/policy/gated_delta.py",
        "its loop over tokens keeps every state for the backward pass",
        "tests/engine/policy/test_gated_delta.py",
        "mlx-lm trains the rule in memory linear in the tokens",
    ),
    Replacement(
        "mlx-lm",
        "mlx_lm.models.bailing_moe_linear:recurrent_gla",
        "grpo_engine/policy/gated_delta.py",
        "as `gated_delta_ops`",
        "tests/engine/policy/test_gated_delta.py",
        "as `gated_delta_ops`",
    ),
    Replacement(
        "mlx-lm",
        "mlx_lm.tuner.lora:LoRALinear.__call__",
        "grpo_engine/policy/lora.py",
        "it copies a 16-bit input to float32, and passes twice over the output",
        "tests/engine/policy/test_lora.py",
        "mlx-lm's layer computes in the format of its input",
    ),
    Replacement(
        "mlx-lm",
        "mlx_lm.models.gemma2:Attention",
        "grpo_engine/policy/repairs.py",
        "a mask for each row does not fit its grouped queries",
        "tests/engine/policy/test_families.py",
        "mlx-lm decodes padded rows of gemma2",
    ),
    Replacement(
        "mlx-lm",
        "mlx_lm.models.gemma3n:LanguageModel",
        "grpo_engine/policy/repairs.py",
        "without a cache, layers that share keys and values have none",
        "tests/engine/policy/test_families.py",
        "mlx-lm's gemma3n gives the same logits without a cache",
    ),
    Replacement(
        "mlx-lm",
        "mlx_lm.models.gpt_bigcode:GPTBigCodeModel",
        "grpo_engine/policy/repairs.py",
        "it takes one position for all rows",
        "tests/engine/policy/test_families.py",
        "mlx-lm decodes padded rows of gpt_bigcode",
    ),
    Replacement(
        "mlx-lm",
        "mlx_lm.models.longcat_flash_ngram:NgramEmbedding",
        "grpo_engine/policy/repairs.py",
        "its cache holds padding, and tokens of rows that are shorter than its window",
        "tests/engine/policy/test_families.py",
        "mlx-lm decodes padded rows of longcat_flash_ngram",
    ),
    Replacement(
        "mlx-lm",
        "mlx_lm.models.plamo3:Model.make_cache",
        "grpo_engine/policy/repairs.py",
        "its cache is a token shorter than its mask",
        "tests/engine/policy/test_families.py",
        "mlx-lm's plamo3 decodes what it computes without a cache",
    ),
    Replacement(
        "mlx-lm",
        "mlx_lm.models.recurrent_gemma:RGLRU",
        "grpo_engine/policy/repairs.py",
        "its gradient is not a number where a decay rounds to 1",
        "tests/engine/policy/test_families.py",
        "mlx-lm's layer has a finite gradient there",
    ),
    Replacement(
        "mlx-lm",
        "mlx_lm.utils:_get_classes",
        "grpo_engine/policy/shapes.py",
        "the one way to a model's class from its configuration",
        "tests/engine/policy/test_shapes.py",
        "mlx-lm builds a model from a configuration alone",
    ),
    Replacement(
        "textual",
        "textual.screen:UPDATE_PERIOD",
        "app/tui/textual_private/waits.py",
        "a frame waits for up to a sixtieth of a second",
        "tests/app/test_replaced.py",
        "Textual lets an app choose",
    ),
    Replacement(
        "textual",
        "textual.constants:ESCAPE_DELAY",
        "app/tui/textual_private/waits.py",
        "the escape key waits for a tenth of a second",
        "tests/app/test_replaced.py",
        "Textual lets an app choose",
    ),
    Replacement(
        "textual",
        "textual.drivers.linux_driver:LinuxDriver.run_input_thread",
        "app/tui/textual_private/terminal_driver.py",
        "it freezes the app when the terminal is lost, and looks for a lone escape every 100 ms",
        "tests/e2e/test_leaving.py",
        "Textual's driver reports a lost terminal",
    ),
    Replacement(
        "textual",
        "textual.css.stylesheet:Stylesheet.reparse",
        "app/tui/textual_private/themed_app.py",
        "the first visit of a screen parses every rule again, for 40 to 140 ms",
        "tests/app/tui/test_stylesheet.py",
        "Textual parses a source once",
    ),
    Replacement(
        "textual",
        "textual.app:App._load_screen_css",
        "app/tui/textual_private/themed_app.py",
        "as `Stylesheet.reparse`",
        "tests/app/tui/test_stylesheet.py",
        "as `Stylesheet.reparse`",
    ),
    Replacement(
        "textual",
        "textual.app:App._fatal_error",
        "app/tui/textual_private/themed_app.py",
        "it draws all local values for half a minute before the app ends",
        "tests/e2e/test_leaving.py",
        "Textual prints an error at once",
    ),
    Replacement(
        "textual",
        "textual.command:CommandPalette._GATHER_COMMANDS_GROUP",
        "app/tui/textual_private/action_palette.py",
        "an early enter runs nothing",
        "tests/app/tui/test_finding.py",
        "Textual's palette waits for its hits",
    ),
)


def check() -> Check:
    """Whether a library is newer than the release in which its replaced parts were tested."""
    installed = {}
    for package in TESTED:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:  # other lines say that it is missing
            continue
    return verdict(installed)


def verdict(installed: Mapping[str, str]) -> Check:
    """The line of the report for these releases."""
    newer = [
        name for name, number in installed.items() if _release(number) > _release(TESTED[name])
    ]
    if not newer:
        return Check("libraries", "not newer than those that were tested")
    text = ", ".join(f"{name} {installed[name]}, tested with {TESTED[name]}" for name in newer)
    pinned = " ".join(f"{name}=={TESTED[name]}" for name in newer)
    return Check("libraries", text, f"If something fails, go back: pip install '{pinned}'.")


def _release(number: str) -> tuple[int, ...]:
    """The numbers of a release, without what follows them."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[a-z+]", number)[0])))
