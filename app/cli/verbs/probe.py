"""`grpo-tui probe`: what the model can do before a run, and which group size gives a signal."""

from collections import Counter
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_tui.app.cli.output import print_json
from grpo_tui.app.cli.params import ConfigFile, Json, Preset, Sets
from grpo_tui.app.text.numbers import share
from grpo_tui.app.text.table import table_lines

if TYPE_CHECKING:
    from grpo_engine.api.probe import PromptsProbed, SignalAt


def probe(
    file: ConfigFile = None,
    preset: Preset = None,
    sets: Sets = None,
    prompts: Annotated[int, typer.Option(help="Training prompts to try.", min=2)] = 64,
    samples: Annotated[int, typer.Option(help="Answers to each.", min=2, max=256)] = 16,
    temperature: Annotated[
        list[float] | None, typer.Option(help="May be repeated; default: the run's.", min=0.01)
    ] = None,
    as_json: Json = False,
) -> None:
    """Try the model on training prompts: pass rates, and the share with a signal by group size.

    A prompt gives a signal if its answers do not all score the same. Nothing is trained or stored.

    Example: grpo-tui probe --preset starter --temperature 0.8 --temperature 1.0
    """
    from grpo_engine.platform.scratch import scratch
    from grpo_engine.setup.startup import enter_engine
    from grpo_tui.app.cli.run_config import assemble, start_preset
    from grpo_tui.app.jobs.progress import printer
    from grpo_tui.app.jobs.start import with_pass_rates
    from grpo_tui.experiments.db.paths import store_path

    config = assemble(file, start_preset(file, preset, sets), sets)
    config = with_pass_rates(config, store_path())
    enter_engine(0)
    from grpo_engine.api.probe import PromptsProbed, sizes_of
    from grpo_engine.api.probe import probe as run_probe
    from grpo_engine.control import Control

    show = printer(as_json=False)
    results: list[PromptsProbed] = []
    with scratch("probe") as folder:
        for event in run_probe(
            config,
            Control(),
            folder=folder,
            prompts=prompts,
            samples=samples,
            temperatures=temperature or [config.rollout.temperature],
        ):
            if isinstance(event, PromptsProbed):
                results.append(event)
            else:
                show.show(event)
    show.close()
    sizes = sizes_of(config, samples)
    reports = [report(result, sizes, config.rollout.prompts) for result in results]
    if as_json:
        return print_json([data for data, _ in reports])
    return print("\n".join(text for _, text in reports))


def report(result: "PromptsProbed", sizes: list[int], prompts: int) -> tuple[dict[str, Any], str]:
    """The findings at one temperature, as data and as text."""
    from grpo_engine.api.probe import ENOUGH, pass_rates, recommended, signals

    results, samples, rates = (
        signals(result, sizes, prompts),
        len(result.rewards[0]),
        pass_rates(result),
    )
    best = recommended(results)
    lines = [
        f"temperature {result.temperature:g}: {len(result.keys)} prompts, {samples} answers each"
    ]
    if rates:
        count = Counter(rates.values())
        lines += [
            "",
            f"right: {share(fmean(rates.values()))} of the answers; "
            f"{count[0]} of the prompts never, {count[1]} always",
        ]
    lines += ["", *table_lines([_row(result, prompts) for result in results]), ""]
    threshold = f"{share(ENOUGH)} of the prompts"
    lines.append(
        f"Use rollout.group_size {best}: the smallest tried at which {threshold} have a signal."
        if best
        else f"No group size tried gives {threshold} a signal: use easier or harder prompts, "
        "another temperature, or more --samples."
    )
    data = {
        "temperature": result.temperature,
        "prompts": len(result.keys),
        "answers": samples,
        "tokens": result.tokens,
        "seconds": result.seconds,
        "pass_rates": rates or None,
        "group_sizes": results,
        "recommended": best,
    }
    return data, "\n".join([*lines, ""])


def _row(result: "SignalAt", prompts: int) -> dict[str, Any]:
    low, high = share(result["low"]), share(result["high"])
    return {
        "group size": result["group_size"],
        "prompts with a signal": f"{share(result['share'])} ({low} to {high})",
        f"a step of {prompts} prompts, sampled and scored": f"{result['seconds']:.1f} s",
    }
