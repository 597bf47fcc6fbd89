"""The pages: example prompts, rewards tried on a typed answer, the settings as YAML."""

from dataclasses import dataclass
from typing import Any

from textual import events
from textual.app import ComposeResult
from textual.message import Message
from textual.widget import Widget
from textual.widgets import TextArea

from grpo_tui.app.text.safe_text import clip_start, safe, wrap
from grpo_tui.app.tui.looks.colours import style
from grpo_tui.app.tui.screens.new_run.asides import covered
from grpo_tui.app.tui.screens.new_run.facts import probe_key, probe_lines, prompt_lines, score_lines
from grpo_tui.app.tui.screens.new_run.panels import ScrolledPanel
from grpo_tui.app.tui.screens.new_run.view import View
from grpo_tui.app.tui.widgets.field import Field
from grpo_tui.app.tui.widgets.panel import Line, paragraph

ANSWER_LINES = 5
MOST_SAID = 40  # lines of one reply


@dataclass
class AnswerTyped(Message):
    """The typed answer has changed."""

    text: str


@dataclass
class AnswerGiven(Message):
    """The person has answered the environment, or begins an episode."""

    text: str


@dataclass
class YamlTyped(Message):
    """The typed YAML has changed."""

    text: str


class PromptsPanel(ScrolledPanel):
    """The first prompts of the run, exactly as the model sees them."""

    reads = ("examples", "example", "busy")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("the model sees", **kwargs)

    def topic(self) -> str:
        return "setting:task.name"

    def copy_text(self) -> str:
        """Return the chosen prompt, escaped for the terminal."""
        found = self.view.examples.get("examples", ()) if self.view is not None else ()
        place = self.view.example if self.view is not None else 0
        return safe(found[place]["text"], "\n") if place < len(found) else ""

    def lines(self, view: View, width: int) -> list[Line]:
        """The task in numbers, then its first problems."""
        name = str(view.examples.get("name", ""))
        self.title = f"the model sees · {name}" if name else "the model sees"
        self.note = view.busy
        return prompt_lines(view, width, self.palette)


class ProbePanel(ScrolledPanel):
    """What the model can do before the run, and which group size gives a signal."""

    reads = ("probe", "checked")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("probe", **kwargs)

    def topic(self) -> str:
        return "setting:rollout.group_size"

    def copy_text(self) -> str:
        """Return the table as text."""
        lines = probe_lines(self.view, 100, self.palette) if self.view is not None else []
        return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)

    def lines(self, view: View, width: int) -> list[Line]:
        """Progress or advice, the table, the pass rates."""
        found = view.probe
        if not found or found.get("problem"):
            self.note = "s again" if found else ""
        elif not found["ended"]:
            count = f"{found['answers']:,} of {found['of']:,} answers   " if found["of"] else ""
            self.note = f"{count}s stop"
        elif view.checked.config is not None and found["key"] != probe_key(view.checked.config):
            self.note = "of other settings   s probe these"
        else:
            self.note = "⏎ use it   s again" if found["best"] else "s again"
        return probe_lines(view, width, self.palette)


class TextPanel(ScrolledPanel):
    """A panel with a text field in its frame."""

    DEFAULT_CSS = """
    TextPanel TextArea {
        position: absolute; border: none; padding: 0; background: $panel; color: $foreground;
        scrollbar-size-vertical: 1; scrollbar-size-horizontal: 1;
    }
    TextPanel TextArea:focus { border: none; }
    TextPanel TextArea .text-area--cursor-line { background: $panel; }
    TextPanel TextArea .text-area--placeholder { color: $text-muted; }
    TextPanel TextArea .text-area--cursor {
        background: $input-cursor-background; color: $input-cursor-foreground;
    }
    TextPanel TextArea .text-area--selection { background: $input-selection-background; }
    """

    @property
    def area(self) -> TextArea:
        return self.query_one(TextArea)

    @property
    def entry(self) -> Widget:
        """The field, whatever its kind."""
        return self.query_one("TextArea, Field", Widget)

    def field_place(self) -> tuple[int, int]:
        """The number of lines above the field, and its height."""
        raise NotImplementedError

    def on_resize(self, _event: events.Resize) -> None:
        """Resize the field with the panel."""
        offset, size = covered(self, *self.field_place())
        entry = self.entry
        entry.styles.offset = offset
        entry.styles.width, entry.styles.height = size.width, size.height


class TryPanel(TextPanel):
    """Try reward functions on a typed answer."""

    reads = ("examples", "example", "scores", "busy")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("try the rewards", **kwargs)

    def compose(self) -> ComposeResult:
        yield TextArea(placeholder="an answer, as the model might give it", soft_wrap=True)

    def topic(self) -> str:
        return "setting:rewards.functions"

    def field_place(self) -> tuple[int, int]:
        """Place the field below the prompt's last line."""
        return 2, ANSWER_LINES

    def head_height(self) -> int:
        """The height of the prompt and the field."""
        return 3 + min(ANSWER_LINES, max(1, self.inner.height - 3))

    def paint(self, width: int, height: int) -> list[Line]:
        """The end of the prompt, space for the answer, the scores."""
        lines = super().paint(width, height)
        if self.view is None or len(lines) < 2:
            return lines
        found = self.view.examples.get("examples", ())
        self.note = f"prompt {self.view.example + 1}; [ ] another" if found else ""
        if self.view.example < len(found):
            example = found[self.view.example]
            words = example["text"].strip().replace("\n", " ")
            target = f"target {example['target']}" if example["target"] else ""
            label = style(self.palette.label)
            lines[0] = [("after  ", label), (clip_start(words, width - 7), label)]
            lines[1] = [(part, style(self.palette.good)) for part in wrap(target, width, 1)]
        else:
            busy = "" if self.view.examples else self.view.busy
            lines[0] = [(busy or "no prompt yet; x shows why", style(self.palette.label))]
        return lines

    def copy_text(self) -> str:
        """Return the scores."""
        rows = self.view.scores.get("rows", ()) if self.view is not None else ()
        return "\n".join(f"{row['name']} {row['value']} {safe(row['reason'])}" for row in rows)

    def lines(self, view: View, width: int) -> list[Line]:
        """Each function's score and reason."""
        return score_lines(view, width, self.palette)

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Request scores for the changed answer."""
        event.stop()
        self.post_message(AnswerTyped(event.text_area.text))


class PlayPanel(TextPanel):
    """Play an episode of the task's environment, in the model's place."""

    DEFAULT_CSS = """
    PlayPanel Field {
        position: absolute; border: none; height: 1; padding: 0;
        background: $panel; color: $foreground;
    }
    PlayPanel Field:focus { border: none; background-tint: transparent 0%; }
    """
    reads = ("played", "checked")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("play the environment", **kwargs)

    def compose(self) -> ComposeResult:
        yield Field(placeholder="⏎ begins an episode")

    def topic(self) -> str:
        return "setting:task.environment"

    def field_place(self) -> tuple[int, int]:
        """Place the field in the last line."""
        return max(0, self.inner.height - 1), 1

    def watch_view(self) -> None:
        """Show the end of the dialogue, and what ⏎ does."""
        if self.view is not None:
            self._top = len(self.view.played.lines) * self.inner.height
            hints = {"nobody": "⏎ begins an episode", "person": "your answer; \\n is a line break",
                     "environment": "the environment replies…"}  # fmt: skip
            self.query_one(Field).placeholder = hints[self.view.played.turn]

    def paint(self, width: int, height: int) -> list[Line]:
        """The dialogue, above the field."""
        return super().paint(width, height - 1)

    def copy_text(self) -> str:
        """Return the dialogue."""
        played = self.view.played.lines if self.view is not None else ()
        return "\n".join(safe(text, "\n") for _, text in played)

    def lines(self, view: View, width: int) -> list[Line]:
        """What was said so far."""
        palette = self.palette
        looks = {"answer": palette.headline, "hint": palette.label, "error": palette.bad}
        marks = {"answer": "▸ ", "error": "✗ "}
        said = view.played.lines or ((
            "hint", "You answer in the model's place and see what the environment replies: the "
            "quickest way to find out that it is wrong. `grpo-tui tasks test` does the same.",
        ),)  # fmt: skip
        return [
            [("  " if at else marks.get(kind, "  "), style(looks.get(kind, palette.text))),
             (part, style(looks.get(kind, palette.text)))]
            for kind, text in said for at, part in enumerate(wrap(text, width - 2, MOST_SAID))
        ]  # fmt: skip

    def on_input_submitted(self, event: Field.Submitted) -> None:
        """Give the answer, or begin."""
        event.stop()
        if self.view is not None and self.view.played.turn != "environment":
            self.post_message(AnswerGiven(event.value.replace("\\n", "\n")))
            event.input.clear()


class YamlPanel(TextPanel):
    """The same settings as YAML, kept in sync in both directions."""

    reads = ("checked", "yaml_problem")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("as YAML", **kwargs)
        self._shown = ""

    def compose(self) -> ComposeResult:
        yield TextArea(soft_wrap=False, tab_behavior="focus")

    def watch_view(self) -> None:
        """Update the text from the form, unless the user is typing here."""
        view = self.view
        if view is None:
            return
        typing = self.area.has_focus or view.yaml_problem
        if not typing and view.checked.config is not None:
            text = view.form.to_yaml()
            if text != self.area.text:
                self._shown = text
                self.area.load_text(text)

    def field_place(self) -> tuple[int, int]:
        """Leave three lines below the field."""
        return 0, max(1, self.inner.height - 3)

    def head_height(self) -> int:
        """The height of the field."""
        return self.field_place()[1]

    def scroll_lines(self, by: int) -> None:
        """Scroll the text in the field."""
        self.area.scroll_relative(y=by, animate=False)

    def copy_text(self) -> str:
        """Return the YAML."""
        return self.area.text

    def lines(self, view: View, width: int) -> list[Line]:
        """Errors in the text, otherwise a description of it."""
        self.note = "✗ not applied" if view.yaml_problem else "⏎ edit   w save   y copy"
        if view.yaml_problem:
            return paragraph(f"✗ {view.yaml_problem}", width, 3, self.palette.bad)
        said = "Only what differs from the defaults; what you delete goes back to its default."
        return paragraph(said, width, 3, self.palette.label)

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Apply what the user types; ignore text that the form wrote."""
        event.stop()
        if event.text_area.text != self._shown:
            self._shown = event.text_area.text
            self.post_message(YamlTyped(event.text_area.text))
