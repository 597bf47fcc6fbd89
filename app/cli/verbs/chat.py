"""`grpo-tui chat`: the trained model and the one it began as, asked the same thing."""

import sys
from typing import Annotated

import typer

from grpo_tui.app.cli.params import Checkpoint, Json, RunRef, Trust


def chat(
    run: RunRef,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROMPT]…", help="Ask these and print the answers."),
    ] = None,
    step: Checkpoint = None,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.", min=0)] = 0.0,
    tokens: Annotated[int, typer.Option(help="Most tokens of an answer.", min=1)] = 200,
    _trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Ask a trained model and its starting model the same question.

    Without a prompt a screen opens. With --json, each token has its log-probability under both.

    Example: grpo-tui chat @last "What is 47 + 38?"
    """
    import dataclasses
    import json

    from grpo_tui.app.chat.client import Chat, pair_of
    from grpo_tui.app.cli.output import print_text
    from grpo_tui.app.cli.store_access import reading

    with reading() as reader:
        pair, store = pair_of(reader, run, step), reader.path
    if not prompts:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise typer.BadParameter("give a PROMPT, or a terminal for the screen")
        from grpo_tui.app.tui.app import open_workbench
        from grpo_tui.app.tui.dialogs.chat import ChatScreen

        raise typer.Exit(open_workbench(store, first=lambda: ChatScreen(pair)))
    dialogue = Chat(pair, temperature=temperature, tokens=tokens)
    try:
        for prompt in prompts:
            *_, turn = dialogue.send(prompt)
            if turn.problem:
                text = turn.problem.replace("rollout.max_new_tokens", "--tokens")
                raise typer.BadParameter(text)
            if as_json:
                print(json.dumps(dataclasses.asdict(turn), ensure_ascii=False))
                continue
            for name, text in zip((f"step {pair.step}", "before"), turn.texts, strict=True):
                print_text(f"{name:>10}  {text}")
    finally:
        dialogue.close()
