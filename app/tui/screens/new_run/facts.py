"""The lines of the panes on costs, recipe, example prompts and tried rewards."""

from collections.abc import Mapping
from typing import Any

from grpo_engine.config.settings import RunConfig
from grpo_tui.app.text.numbers import seconds, share, short, signed, tokens
from grpo_tui.app.text.recipe_text import answers, formula
from grpo_tui.app.text.safe_text import cell_len, clip, pad, wrap
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.screens.new_run.form import cost
from grpo_tui.app.tui.screens.new_run.view import View
from grpo_tui.app.tui.widgets.panel import Line, paragraph

GIGA = 1e9
WORD = 10
BAR = 10


def scale(count: float) -> tuple[float, str]:
    """The unit for this many bytes, and the unit's size in bytes."""
    units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return next((unit for unit in units if count >= 0.95 * unit[0]), (1.0, "B"))


def size(count: float) -> str:
    """Format a number of bytes for people."""
    per, unit = scale(count)
    return f"{short(count / per)} {unit}"


def fact(word: str, said: str, width: int, palette: Palette, most: int = 2) -> list[Line]:
    """A dim label and its text, wrapped to at most `most` lines."""
    parts = wrap(said, max(8, width - WORD), most)
    return [
        [(f"{word if not at else '':<{WORD}}", style(palette.label)),
         (part, style(palette.text))]
        for at, part in enumerate(parts)
    ]  # fmt: skip


# -- costs ----------------------------------------------------------------------------------


def cost_lines(view: View, width: int, palette: Palette) -> list[Line]:
    """What a step and the run cost: answers, tokens, memory, time, disk."""
    config = view.checked.config
    if config is None:
        return paragraph("Costs are shown once all errors are fixed.", width, 3, palette.label)
    price = cost(config, view.runs)
    per = f"{config.rollout.prompts} prompts × {config.rollout.group_size}"
    longest = "at most " if price.seconds is None else "about "
    step = price.seconds_per_step
    time = (
        f"{seconds(step)} a step, {seconds(price.seconds)} in all, {price.source.partition(',')[0]}"
        if step is not None else price.source.partition(":")[0]
    )  # fmt: skip
    rows, count = price.rollouts_per_step, price.tokens_per_step
    said = f"{per} = {rows:,} a step, {tokens(rows * config.steps)} in all"
    lines = fact("answers", said, width, palette)
    said = f"{longest}{tokens(count)} a step, {tokens(count * config.steps)} in all"
    lines += fact("tokens", said, width, palette)
    lines += memory_lines(view, width, palette)
    lines += fact("time", time, width, palette)
    lines += fact("disk", f"{size(price.gigabytes * GIGA)} of token numbers", width, palette)
    held_out = view.examples.get("held_out")
    for word, said in side_costs(config, price.tokens_per_step, held_out):
        lines += fact(word, said, width, palette)
    return lines


def side_costs(
    config: RunConfig, per_step: int, held_out: int | None = None
) -> list[tuple[str, str]]:
    """Sampling and scoring that happen besides training.

    `held_out` is how many problems the task holds out; None if that is not known yet.
    """
    rollout, check = config.rollout, config.evaluation
    length = per_step / max(1, rollout.prompts * rollout.group_size)
    found = []
    problems = check.problems if held_out is None else min(check.problems, held_out)
    tasks = 1 + sum(bool(other.weight) for other in config.task.others.values())
    each = tasks * problems * (int(check.greedy) + check.samples)
    times = 2 * int(check.before_and_after) + (config.steps // check.every if check.every else 0)
    if times and each:
        when = f"every {check.every} steps" if check.every else "before and after"
        if check.every and check.before_and_after:
            when += ", before and after"
        count = tokens(each * times * length)
        all_of = "" if problems == check.problems else f" to the {problems} problems there are"
        found.append(("held-out", f"{each:,} answers{all_of} {when}: {count} tokens"))
    pinned = check.pinned if held_out is None else min(check.pinned, held_out)
    if pinned:
        rows = pinned * rollout.group_size
        visits = config.steps // check.pinned_every + 1
        found.append(("pinned", f"{rows} answers every {check.pinned_every} steps: "
                      f"{tokens(rows * visits * length)} tokens"))  # fmt: skip
    if config.record.kl and config.algorithm.resolved().anchor == "none":
        rows = rollout.prompts * rollout.group_size
        found.append(("KL", f"{rows} answers scored by the reference as well: +100% of a forward"))
    if config.record.tokens not in ("none", "nothing"):
        part = f"+{1 / rollout.prompts:.0%} of a forward"
        found.append(("after", f"1 of {rollout.prompts} groups scored again: {part}"))
    return found


def memory_lines(view: View, width: int, palette: Palette) -> list[Line]:
    """The memory estimate beside the available memory, or why there is no estimate."""
    memory = view.memory
    if not memory:
        why = "reading the model's shape" if view.busy else "not estimated"
        return fact("memory", why, width, palette)
    if problem := memory.get("problem"):
        return fact("memory", f"unknown: {problem}", width, palette)
    if refused := memory.get("refused"):
        words = wrap(f"✗ {refused}", width - WORD, 4)
        return [
            [(f"{'memory' if not at else '':<{WORD}}", style(palette.label)),
             (part, style(palette.bad))]
            for at, part in enumerate(words)
        ]  # fmt: skip
    used = min(1.0, memory["peak"] / max(1, memory["limit"]))
    full = max(1, round(BAR * used))
    line: Line = [
        (f"{'memory':<{WORD}}", style(palette.label)),
        ("━" * full, style(palette.warn if used > 0.8 else palette.accent)),
        ("─" * (BAR - full), style(palette.guide)),
        (f" {size(memory['peak'])} of {size(memory['limit'])}", style(palette.text)),
    ]
    per, unit = scale(memory["peak"])
    names = ("weights", "optimizer", "sampling", "update")
    weights, optimizer, *either = [f"{name} {short(memory[name] / per)}" for name in names]
    parts = f"{weights}, {optimizer}, {' or '.join(either)}"
    layers = ", layers recomputed" if memory.get("recomputed") else ""
    return [line, *fact("", f"{parts} {unit}, in {memory['dtype']}{layers}", width, palette)]


def cost_summary(view: View) -> str:
    """The costs in one line, for small screens and dialogs."""
    config = view.checked.config
    if config is None:
        return ""
    price = cost(config, view.runs)
    parts = [f"{price.rollouts_per_step:,} answers a step",
             f"{tokens(price.tokens_per_step * config.steps)} tokens in all"]  # fmt: skip
    if view.memory.get("peak"):
        parts.append(f"{size(view.memory['peak'])} of memory")
    if price.seconds is not None:
        parts.append(f"about {seconds(price.seconds)}")
    return ", ".join(parts)


# -- the recipe -----------------------------------------------------------------------------


def recipe_lines(view: View, width: int, palette: Palette) -> list[Line]:
    """The six choices, the formula, and what the recipe refuses."""
    chosen = view.checked.recipe
    lines: list[Line] = []
    for path, problem in view.checked.errors.items():
        if path.startswith("algorithm."):
            # rules name their settings, ranges do not
            name = f"{path.partition('.')[2]} " if problem.startswith("must be") else ""
            lines += paragraph(f"✗ {name}{problem}", width, 5, palette.bad)
    if chosen is None:
        return lines
    if lines:
        lines.append([])
    changed = {path.partition(".")[2] for path in view.checked.own}
    for answer in answers(chosen):
        mine = changed & {answer.question, *answer.settings}
        mark = "● " if mine else "  "
        choice = answer.choice.replace("_", " ")
        lines.append([(mark, style(palette.accent, bold=True)),
                      (pad(answer.asks, max(1, width - cell_len(choice) - 3)) + " ",
                       style(palette.label)),
                      (choice, style(palette.headline, bold=True))])  # fmt: skip
        words = wrap(answer.text, width - 2, 3)
        lines += [[(f"  {part}", style(palette.text))] for part in words]
    lines.append([])
    for text in formula(chosen):
        lines += [[(f"  {part}", style(palette.of_series("kl")))]
                  for part in wrap(text, width - 2, 3)]  # fmt: skip
    return lines


# -- prompts --------------------------------------------------------------------------------


def prompt_lines(view: View, width: int, palette: Palette) -> list[Line]:
    """The task in numbers and its first problems, with visible line ends."""
    found, label = view.examples, style(palette.label)
    if not found:
        words = view.busy or "The first prompts of the run appear here."
        return paragraph(words, width, 2, palette.label)
    if problem := found.get("problem"):
        return paragraph(f"✗ {problem}", width, 30, palette.bad)
    sizes = f"{found['train']:,} problems to train on, {found['held_out']:,} held out"
    if skipped := found.get("skipped", 0):
        sizes += f", {skipped:,} skipped"
    lines: list[Line] = paragraph(found["about"], width, 3, palette.text)
    lines.append([(clip(sizes, width), label)])
    for note in (*found["notes"], *filter(None, [found["lacking"]])):
        lines += paragraph(note, width, 6, palette.warn)
    for place, example in enumerate(found["examples"]):
        lines += [[], _prompt_head(view, place, example, width, palette)]
        lines += shown_text(example["text"], width, palette)
        if example["target"]:
            lines += [[("target ", label), (part, style(palette.good))]
                      for part in wrap(example["target"], width - 7, 1)]  # fmt: skip
        if example["columns"]:
            lines += [[("columns ", label), (part, label)]
                      for part in wrap(example["columns"], width - 8, 1)]  # fmt: skip
        if example["folded"]:
            words = "The template takes no system message: it is put before the user's."
            lines += paragraph(words, width, 2, palette.warn)
    return lines


def _prompt_head(
    view: View, place: int, example: Mapping[str, Any], width: int, palette: Palette
) -> Line:
    count = "" if example["tokens"] is None else f" · {example['tokens']} tokens"
    head = clip(f" {place + 1} of 3 · {example['key']}{count} ", width - 4)
    here = place == view.example
    rule = "─" * max(0, width - cell_len(head) - 2)
    return [("──", style(palette.guide)), (head, style(palette.headline, bold=here)),
            (rule, style(palette.guide))]  # fmt: skip


def shown_text(text: str, width: int, palette: Palette) -> list[Line]:
    """The text that the model reads, with each line end as a dim symbol."""
    lines: list[Line] = []
    paragraphs = text.split("\n")
    for at, line_text in enumerate(paragraphs):
        parts = wrap(line_text, width - 1, 40)
        ends = at < len(paragraphs) - 1
        for place, part in enumerate(parts):
            line: Line = [(part, style(palette.text))]
            if ends and place == len(parts) - 1:
                line.append(("⏎", style(palette.label)))
            lines.append(line)
    return lines


# -- tried rewards --------------------------------------------------------------------------


def score_lines(view: View, width: int, palette: Palette) -> list[Line]:
    """Each function's score for the typed answer, with its reason."""
    found, label = view.scores, style(palette.label)
    if not found:
        return paragraph("The scores of the reward functions appear here.", width, 3, palette.label)
    if problem := found.get("problem"):
        return paragraph(f"✗ {problem}", width, 20, palette.bad)
    lines: list[Line] = []
    for row in found["rows"]:
        value = "None" if row["value"] is None else short(row["value"])
        weighted = "" if row["value"] is None else signed(row["value"] * row["weight"])
        name = pad(row["name"], max(4, width - 22)) + " "
        product = f"{value:>6} × {short(row['weight']):<4}"
        lines.append([(name, style(palette.text)), (product, label),
                      (f"{weighted:>7}", style(palette.headline, bold=True))])  # fmt: skip
        if row["reason"]:
            lines += [[(f"  {part}", label)] for part in wrap(row["reason"], width - 2, 3)]
    total = "None: no function applies" if found["total"] is None else short(found["total"])
    lines.append([(pad("reward", max(4, width - cell_len(total) - 2)) + " ", style(palette.text)),
                  (total, style(palette.good, bold=True))])  # fmt: skip
    for problem in found["problems"]:
        lines += paragraph(f"✗ {problem}", width, 6, palette.bad)
    return lines


# -- the probe ------------------------------------------------------------------------------

GROUP = 6  # the group size
CELL = 17  # a share with its interval, and the seconds of a step


def probe_key(config: RunConfig) -> str:
    """A key of the settings that a probe depends on, without what it recommends."""
    task, rewards = config.task.model_dump_json(), config.rewards.model_dump_json()
    limit = str(config.rollout.max_new_tokens)
    return "\n".join([str(config.seed), config.model.model_dump_json(), task, rewards, limit])


def probe_lines(view: View, width: int, palette: Palette) -> list[Line]:
    """What a probe found: advice, prompts with a signal by group size, pass rates."""
    found = view.probe
    if problem := found.get("problem"):
        return paragraph(f"✗ {problem}", width, 20, palette.bad)
    tables = found.get("tables", ())
    if not tables:
        words = "Stopped." if found.get("ended") else "Loading the model…"
        return paragraph(words, width, 2, palette.label)
    return [
        *_advice(found, width, palette), [],
        *_signal_table(found, width, palette), [], *_pass_rates(tables[0], width, palette),
    ]  # fmt: skip


def _advice(found: Mapping[str, Any], width: int, palette: Palette) -> list[Line]:
    best, stopped = found["best"], found.get("stopped")
    front = palette.good if best else palette.text
    if best:
        words = (f"Use group size {best['group_size']} at temperature {best['temperature']:g}: the "
                 "smallest at which 80% of the prompts have a signal.")  # fmt: skip
    elif found["ended"] and not stopped:
        words = ("No group size tried gives 80% of the prompts a signal: use easier or harder "
                 "prompts, or other settings.")  # fmt: skip
        front = palette.warn
    else:
        words = f"{'Stopped at' if stopped else 'Sampled'} {found['answers']:,} of "
        words += f"{found['of']:,} answers. A prompt has a signal if its answers differ in score."
    return paragraph(words, width, 3, front)


def _signal_table(found: Mapping[str, Any], width: int, palette: Palette) -> list[Line]:
    """The share of prompts with a signal, its interval, and the seconds of a step."""
    tables, best, label = found["tables"], found["best"], style(palette.label)
    sizes = sorted({row["group_size"] for table in tables for row in table["group_sizes"]})
    wide = width >= GROUP + CELL * len(tables)
    each = CELL if wide else max(10, (width - GROUP) // len(tables))
    words = f"prompts with a signal{' (95% interval)' if wide else ''}, seconds to sample a step"
    lines: list[Line] = paragraph(words, width, 2, palette.label)
    word = "temperature" if wide else "T"
    heads = (pad(f"{word} {table['temperature']:g}", each) for table in tables)
    lines.append([("group ", label), *((head, label) for head in heads)])
    for size_ in sizes:
        line: Line = [(f"{size_:>4}  ", style(palette.text))]
        for table in tables:
            row = next((r for r in table["group_sizes"] if r["group_size"] == size_), None)
            if row is None:
                line.append((pad("", each), label))
                continue
            chosen = best == {"group_size": size_, "temperature": table["temperature"]}
            front = palette.good if row["share"] >= found["enough"] else palette.text
            line.append((f"{'▸' if chosen else ' '}{share(row['share']):>4} ",
                         style(front, bold=chosen)))  # fmt: skip
            ends = dict.fromkeys(f"{100 * row[end]:.0f}" for end in ("low", "high"))
            time = seconds(row["seconds"]).replace(" min", "m").replace(" ", "")
            line.append((pad(f"{'–'.join(ends):<7}{time}" if wide else time, each - 6), label))
        lines.append(line)
    return lines


def _pass_rates(table: Mapping[str, Any], width: int, palette: Palette) -> list[Line]:
    """A bar for each range of pass rates."""
    rows, label = table["histogram"], style(palette.label)
    if rows is None:
        words = "No reward function says which answers are right, so there are no pass rates."
        return paragraph(words, width, 2, palette.label)
    words = f"right: {share(table['right'])} of the answers at T {table['temperature']:g}; prompts "
    words += "by their share of right answers"
    lines: list[Line] = paragraph(words, width, 2, palette.label)
    most, room = max(count for _, count in rows), max(4, width - 18)
    for name, count in rows:
        bar = "▆" * round(room * count / most)
        lines.append([(f"{name:>10}  ", label), (bar, style(palette.accent)),
                      (f" {count}" if count else "", label)])  # fmt: skip
    return lines
