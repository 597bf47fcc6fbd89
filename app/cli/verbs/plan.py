"""`grpo-tui plan`: what fits in memory, before a model is downloaded."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_tui.app import exit_codes
from grpo_tui.app.cli.output import print_json, print_table, print_text
from grpo_tui.app.cli.params import ConfigFile, Json, Preset, Sets
from grpo_tui.app.text.numbers import short

if TYPE_CHECKING:
    from grpo_engine.config.settings import RunConfig
    from grpo_engine.policy.policy import Policy

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)  # tokens of a completion
METAL_SHARE = 2 / 3  # Metal lets a program use this much of a small Mac's memory.
PARTS = ("weights", "optimizer", "sampling", "update", "peak")


def plan(
    model: Annotated[
        str,
        typer.Argument(help="`starter`, a model folder, a hub id, or settings that name one."),
    ],
    file: ConfigFile = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="16GB", help="A machine's memory; else what is free here."),
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the longest prompt.")] = 256,
    preset: Preset = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Say which lengths of answers fit in memory, and how, from the model's config.json alone.

    Settings come from the preset, then the file, then --set, as for train. Devices of this
    machine's kind are planned for. Exit status 1 where rollout.max_new_tokens does not fit.
    With remote.url say what a step asks of the server: memory is its matter.

    Example: grpo-tui plan starter --memory 16GB --set rollout.max_new_tokens=512
    """
    from grpo_engine.policy.shapes import describe
    from grpo_engine.setup.teacher import load_teacher
    from grpo_tui.app.cli.run_config import assemble

    limit = usable(memory)
    if file is None and Path(model).suffix in (".yaml", ".yml"):
        config = assemble(Path(model), preset, sets)
    else:
        config = assemble(file, preset, [*(sets or ()), f"model.path={model}"])
    if config.remote.url:
        print_server(config, prompt_tokens, as_json=as_json)
        return
    policy = describe(config.model)
    if config.teacher.path:
        policy.teacher = load_teacher(config, policy, describe)
    report = report_of(config, policy, prompt_tokens, limit)
    print_json(report) if as_json else print_report(report)
    if report["requested"]["remedy"]:
        raise typer.Exit(exit_codes.FAILED)


def usable(memory: str | None) -> int:
    """The bytes that a run may use of a memory such as `16GB` or `16`, or of what is free here."""
    import mlx.core as mx

    from grpo_engine.setup.preflight import SHARE, memory_limit

    if memory is None:
        return memory_limit()
    size = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:GB?)?", memory, re.IGNORECASE)
    if size is None:
        raise typer.BadParameter(f"{memory} is no size; write for example 16GB")
    return int(SHARE * float(size[1]) * 1e9 * (METAL_SHARE if mx.metal.is_available() else 1))


def print_server(config: "RunConfig", prompt_tokens: int, *, as_json: bool) -> None:
    """Print the requests and tokens of a step on the server of these settings."""
    from dataclasses import asdict

    from grpo_engine.policy.memory import Lengths
    from grpo_engine.setup.server_cost import ServerCost
    from grpo_tui.app.text.server_text import server_calls, server_tokens

    rollout, remote = config.training, config.remote
    cost = ServerCost.of(config, Lengths(prompt_tokens, rollout.max_new_tokens))
    name = remote.model or config.model.path
    if as_json:
        print_json({"model": name, "server": remote.url, "calls": cost.calls, **asdict(cost)})
        return
    print_text(
        f"{name} on {remote.url}: {rollout.prompts} prompts of {prompt_tokens} tokens x "
        f"{rollout.group_size} answers of {rollout.max_new_tokens} tokens\n"
        f"Calls: {server_calls(cost)}.\nTokens: {server_tokens(cost)}."
    )


def report_of(
    config: "RunConfig", policy: "Policy", prompt_tokens: int, limit: int
) -> dict[str, Any]:
    """A plan for each length of completions, and for the one in the settings."""
    requested = config.rollout.max_new_tokens
    lengths = {count for count in LENGTHS if prompt_tokens + count <= policy.context_length}
    plans = {
        count: plan_of(config, policy, prompt_tokens, count, limit)
        for count in sorted({*lengths, requested})
    }
    return {
        "model": config.model.path,
        "layers": len(policy.model.layers),
        "parameters": policy.parameters,
        "trained": policy.trainable_parameters,
        "dtype": policy.dtype,
        "context": policy.context_length,
        "tuning": config.model.tuning,
        "notes": list(policy.notes),
        "limit": limit,
        "prompts": config.rollout.prompts,
        "group_size": config.training.group_size,
        "prompt_tokens": prompt_tokens,
        "requested": plans[requested],
        "plans": list(plans.values()),
    }


def plan_of(
    config: "RunConfig", policy: "Policy", prompt_tokens: int, completion_tokens: int, limit: int
) -> dict[str, Any]:
    """How a step with completions of this length fits in memory, or what to change."""
    from grpo_engine.policy.memory import Lengths
    from grpo_engine.setup.preflight import estimated, plan_memory, remedy, with_replies

    lengths = Lengths(prompt_tokens, completion_tokens)
    if config.task.environment or config.task.tools:
        lengths = with_replies(config, lengths, policy.context_length)
    chosen = plan_memory(config, policy, lengths, limit)
    estimate = estimated(config, policy, lengths, chosen)
    is_enough = not estimate.known or estimate.peak <= limit
    change = "" if is_enough else remedy(config, estimate, chosen, lengths)
    if sum(lengths) > policy.context_length:
        change = f"The model's context is {policy.context_length} tokens."
    return {
        "answer_tokens": completion_tokens,
        "sampled_rows": chosen.max_rows,
        "rows": chosen.micro_rows,
        "recomputed": chosen.grad_checkpoint,
        "how": str(chosen),
        "estimate": str(estimate),
        **{part: getattr(estimate, part) for part in PARTS},
        **dict.fromkeys(() if estimate.known else ("sampling", "update", "peak")),
        "remedy": change,
    }


def print_report(report: dict[str, Any]) -> None:
    """Print the model, the table of lengths, and a sentence on the length in the settings."""
    print_text(
        f"{report['model']}: {report['layers']} layers, {report['parameters'] / 1e6:.1f} M "
        f"parameters in {report['dtype']}, {short(report['trained'])} of them trained "
        f"({report['tuning']}), a context of {report['context']} tokens\n"
        f"{report['prompts']} prompts of {report['prompt_tokens']} tokens x "
        f"{report['group_size']} answers; a run may use {gigabytes(report['limit'])} GB\n"
    )
    print_table(
        [
            {
                "tokens": plan["answer_tokens"],
                "sampled": plan["sampled_rows"],
                "rows": plan["rows"],
                "layers": "recomputed" if plan["recomputed"] else "kept",
                **{part: gigabytes(plan[part]) for part in PARTS},
                "fits": "no" if plan["remedy"] else "yes" if plan["peak"] else "–",
            }
            for plan in report["plans"]
        ]
    )
    plan = report["requested"]
    outcome = f"fit: {plan['how']}." if plan["peak"] else f"run as {plan['how']}."
    if plan["remedy"]:
        outcome = f"do not fit. {plan['remedy']}"
    print_text(
        "\nTokens of an answer, answers sampled at a time, rows of a backward pass; memory in GB.\n"
        f"Answers of {plan['answer_tokens']} tokens (rollout.max_new_tokens) {outcome}\n"
        f"For these, {plan['estimate']}."
    )


def gigabytes(size: int | None) -> str:
    return "–" if size is None else f"{size / 1e9:.2f}"
