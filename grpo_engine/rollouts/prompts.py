"""Renders examples to token ids, and completions to the form that reward functions get.

Chat messages go through the model's chat template with a generation prompt; a final assistant
message is a prefill that the completion continues. A text prompt is tokenised unchanged.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from grpo_engine.config.safe_json import read_text
from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import (
    ConfigError,
    DataError,
    EngineError,
    MissingPackageError,
    ModelError,
)
from grpo_engine.frozen import frozen
from grpo_engine.policy.embedded import EMBEDDED
from grpo_engine.rollouts.template_trial import TemplateLimitError, try_template
from grpo_engine.tasks.answers import prefill_of
from grpo_engine.tasks.base import Example, Generated, Message, Prompt, Task
from grpo_engine.tasks.rows import BadRows

# Characters of a prompt for each token that fits: no text has tokens as long, and a tokenizer ends
# the process if a text is too large for the memory.
LONGEST_TOKEN, LONGEST_PROMPT = 64, 10_000_000
PROBES = 64  # generated problems whose prompt lengths are checked before a run
# A tokenizer gives at most a token per byte, or two if it spells text out first.
TOKENS_PER_BYTE = 2
TURN_TEXT = "a made-up answer"
# A turn of a made-up dialogue shows the text that a chat template writes around a completion.
TURN: tuple[Message, Message] = (
    {"role": "user", "content": "a question"},
    {"role": "assistant", "content": TURN_TEXT},
)
# For models whose template knows no tools, or whose own form of a call is unknown.
EXPLANATION = """\
You can call the tools below. To call one, write nothing but the call, in this form:
<tool_call>{{"name": "NAME", "arguments": {{"PARAMETER": VALUE}}}}</tool_call>
Its result follows in <tool_response></tool_response>. Tools:
{tools}"""
# A ChatML template that renders a turn the same whatever follows it.
CHATML = """\
{%- macro said(role, text) %}<|im_start|>{{ role }}
{{ text }}<|im_end|>
{% endmacro %}
{%- set first = messages[0].content if messages[0].role == 'system' else '' %}
{%- if tools %}
{%- set called = namespace(list='') %}
{%- for tool in tools %}{% set called.list = called.list + '\\n' + (tool | tojson) %}{% endfor %}
{%- set first = (first + '\\n\\n' if first else '') + '# Tools\\n\\nYou may call functions to help \
with the query. Their signatures are within <tools></tools>:\\n<tools>' + called.list + \
'\\n</tools>\\n\\nFor each call, write a JSON object with its name and arguments within \
<tool_call></tool_call>:\\n<tool_call>\\n{"name": <name>, "arguments": <arguments>}\\n\
</tool_call>' %}
{%- endif %}
{%- if first %}{{ said('system', first) }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- said('user', '<tool_response>\\n' + message.content + '\\n</tool_response>') }}
{%- elif message.role != 'system' or not loop.first %}
{{- said(message.role, message.content or '') }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@frozen
class RenderedPrompt:
    """The tokens of a prompt; `prompt` is its form for reward functions."""

    ids: tuple[int, ...]
    text: str
    prompt: Prompt
    prefill: str = ""  # text of the assistant that the completion continues
    folded_system: bool = False


@frozen
class Opening:
    """An environment's addition to a prompt: text for its last message, and further messages.

    If it `replaces` the prompt, there are no other messages, and no other tools.
    """

    text: str = ""
    messages: tuple[Message, ...] = ()
    replaces: bool = False
    tools: tuple[Mapping[str, Any], ...] = ()

    def after(self, prompt: Prompt) -> Prompt:
        """The prompt with the opening."""
        if self.replaces:
            return self.messages
        if isinstance(prompt, str):
            return prompt + self.text + "".join(f"\n{plain_text([m])}" for m in self.messages)
        if self.text:
            last = {**prompt[-1], "content": f"{prompt[-1].get('content') or ''}{self.text}"}
            prompt = (*prompt[:-1], last)
        return (*prompt, *self.messages)


NO_OPENING = Opening()
AGENTS = ("agent:", "verifiers:")  # environments that ask a chat endpoint


def conversation(
    task: Task, example: Example, opening: Opening = NO_OPENING, explained: str = ""
) -> Prompt:
    """Add the task's system message and prefill to the example's prompt.

    If the task has a system message, a text prompt becomes a user message. `explained` is added
    to the system message.
    """
    prompt = opening.after(example.prompt)
    system = "\n\n".join(filter(None, (task.system_prompt, explained)))
    if isinstance(prompt, str):
        if not task.system_prompt:
            return f"{explained}\n\n{prompt}{task.prefill}" if explained else prompt + task.prefill
        prompt = ({"role": "user", "content": prompt},)
    messages = list(prompt)
    roles = [message.get("role") for message in messages]
    if system and "system" not in roles:
        messages.insert(0, {"role": "system", "content": system})
    elif explained and "system" in roles:
        index = roles.index("system")
        content = f"{messages[index].get('content') or ''}\n\n{explained}"
        messages[index] = {**messages[index], "content": content}
    if task.prefill:
        messages.append({"role": "assistant", "content": task.prefill})
    return tuple(messages)


def for_rewards(example: Example, sent: Prompt, opening: Opening = NO_OPENING) -> Prompt:
    """The prompt for reward functions: text if the data has text, also where a chat was sent."""
    if isinstance(example.prompt, str) and not isinstance(sent, str):
        return opening.after(example.prompt)
    return sent


def reward_prompt(prompt: Prompt) -> str | list[dict[str, Any]]:
    """The prompt in the form that TRL passes to reward functions."""
    return prompt if isinstance(prompt, str) else [dict(message) for message in prompt]


def reward_completion(
    prompt: Prompt, text: str, *, form: str = "auto"
) -> str | list[dict[str, Any]]:
    """The completion for reward functions: text, or in TRL's form one message after a chat."""
    if form == "text" or isinstance(prompt, str):
        return text
    return [{"role": "assistant", "content": text}]


@dataclass(frozen=True, slots=True)
class PromptRenderer:
    """Renders a task's prompts for one model; `context` is the model's limit, 0 if unknown."""

    tokenizer: Any
    task: Task
    config: TaskConfig
    model: str = "the model"
    context: int = 0
    max_new_tokens: int = 0
    vocabulary: int = 0  # tokens that the model knows, 0 if unknown
    tools: tuple[Mapping[str, Any], ...] = ()  # their schemas
    template_knows_tools: bool = False
    demonstrates: bool = False  # training problems need a completion

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> "PromptRenderer":
        """The same renderer for prompts that offer these tools."""
        renderer = replace(self, tools=tuple(tools), template_knows_tools=True)
        return replace(renderer, template_knows_tools=bool(tools) and renderer._shows_tools())

    def _shows_tools(self) -> bool:
        """Whether the chat template lists the tools and takes their results."""
        result = ({"role": "tool", "name": "t", "content": "what a tool gave"},)
        try:
            text = self.dialogue_text((*TURN, *result), opens=True)
        except Exception:  # a template may raise anything
            return False
        names = [tool["function"]["name"] for tool in self.tools]
        return "what a tool gave" in text and all(f'"{name}"' in text for name in names)

    @property
    def is_plain(self) -> bool:
        """Whether messages are joined as bare text."""
        return self.config.chat_template == "plain"

    def dialogue_text(self, messages: Sequence[Message], *, opens: bool = False) -> str:
        """The text of a dialogue, with the beginning of the next turn if it `opens`."""
        return self._apply(messages, add_generation_prompt=opens, **self._options())

    @property
    def limit(self) -> int:
        """The maximum tokens of a prompt; 0 means no limit."""
        remaining = max(1, self.context - self.max_new_tokens) if self.context else 0
        return min(filter(None, (remaining, self.config.max_prompt_tokens)), default=0)

    def __call__(self, example: Example, opening: Opening = NO_OPENING) -> RenderedPrompt:
        """Render one example; an error says which one failed and why."""
        explained = ""
        if self.tools and not self.template_knows_tools:
            listed = "\n".join(json.dumps(tool["function"]) for tool in self.tools)
            explained = EXPLANATION.format(tools=listed)
        prompt = conversation(self.task, example, opening, explained)
        self._refuse_huge(prompt, example)
        text, folded = self._text(prompt, example)
        ids = self._encoded(text, example, add_special_tokens=isinstance(prompt, str))
        if not text.strip() or not ids:
            raise DataError(
                f"{location(example)}: the prompt is empty; give it text or remove the row"
            )
        if self.limit and len(ids) > self.limit:
            raise self._too_long(example, len(ids))
        return RenderedPrompt(
            ids=tuple(ids),
            text=text,
            prompt=for_rewards(example, prompt, opening),
            prefill=prefill_of(prompt),
            folded_system=folded,
        )

    def completion_ids(self, example: Example) -> tuple[int, ...]:
        """The tokens of the data's own completion of an example, with those that end it.

        After a chat they are what the template adds for the assistant's message, as in mlx-lm's
        trainer; after a text the end token follows.
        """
        prompt, turn = conversation(self.task, example), self._completion(example)
        if isinstance(prompt, str) or self.is_plain:
            text = str(turn["content"])
            ids = self._encoded(text, example, add_special_tokens=False)
            ids += [self.tokenizer.eos_token_id] * (ids[-1:] != [self.tokenizer.eos_token_id])
        else:
            before, prefill = self(example).ids, prefill_of(prompt)
            if prefill:
                prompt = prompt[:-1]
                turn = {**turn, "content": f"{prefill}{turn['content']}"}
            text, _ = self._text((*prompt, turn), example, self.dialogue_text)
            ids = self._encoded(text, example, add_special_tokens=False)
            if tuple(ids[: len(before)]) != before:
                raise DataError(
                    f"{location(example)}: {self._template_file()} renders the prompt differently "
                    "once its answer follows, so that the answer's tokens cannot be told apart; "
                    "set task.chat_template to chatml or `plain`",
                    "task.chat_template",
                )
            ids = ids[len(before) :]
        if len(ids) > self.max_new_tokens:
            raise DataError(
                f"{location(example)}: the completion has {len(ids)} tokens, more than "
                f"rollout.max_new_tokens {self.max_new_tokens} allows; raise it, or shorten the "
                "completion",
                "rollout.max_new_tokens",
            )
        return tuple(ids)

    def _completion(self, example: Example) -> Message:
        """The data's own completion of an example, as the assistant's message."""
        value = example.completion
        if isinstance(value, str):
            value = [{"role": "assistant", "content": value}] if value.strip() else []
        if not value or len(value) > 1 or value[0].get("role") != "assistant":
            problem = "a completion is text or one message of the assistant"
            columns = ", ".join(example.columns) or "none"
            raise DataError(
                f"{location(example)}: {problem if value else 'there is no answer to learn'}; the "
                f"columns beside the prompt are {columns}. Give each row a `completion`, name the "
                "column with the answer in task.columns.completion, or end `messages` with the "
                "assistant's",
                "task.columns",
            )
        message: Message = value[0]
        return message

    def usable_prompt(self, example: Example) -> RenderedPrompt | None:
        """Render one example; None if it cannot be used and such are skipped."""
        try:
            if self.demonstrates:
                self.completion_ids(example)
            return self(example)
        except DataError:
            if self.config.bad_rows == "skip":
                return None
            raise

    def usable(self) -> tuple["PromptRenderer", tuple[str, ...]]:
        """Check the problems before training; return the renderer of those to use, and notes.

        Checks all of a data set, but only the first `PROBES` of a generator, whose items are alike.
        """
        bad = BadRows(self.config)
        overheads: dict[Any, int] = {}  # bytes that the template adds, by the form of the prompt
        fits = not self.vocabulary or max(self.tokenizer.get_vocab().values()) < self.vocabulary
        prompts: list[RenderedPrompt | None] = []

        def check(_: int, example: Example, learns: bool = False) -> Example:
            if learns:
                self.completion_ids(example)
            form, size = _form_and_size(conversation(self.task, example))
            longest = TOKENS_PER_BYTE * (size + overheads.get(form, 0))
            if not (fits and size and form in overheads and longest <= (self.limit or longest)):
                prompt = self(example)
                overheads[form] = max(overheads.get(form, 0), len(prompt.text.encode()) - size)
                prompts.append(prompt)
            return example

        notes: list[str] = []
        splits: list[Sequence[Example]] = []
        for split in (self.task.train, self.task.held_out):
            if isinstance(split, Generated):
                probes = [self.usable_prompt(example) for example in split[:PROBES]]
                prompts += probes
                if unusable := probes.count(None):
                    notes.append(
                        f"{unusable} of the first {len(probes)} generated prompts cannot be used; "
                        "such are passed over when their turn comes"
                    )
                splits.append(split)
            else:
                learns = self.demonstrates and split is self.task.train
                splits.append(tuple(bad.good(split, partial(check, learns=learns))))
        notes += [bad.note(sum(map(len, splits))), self._form_note()]
        if any(prompt and prompt.folded_system for prompt in prompts):
            notes.append(
                f"the chat template of {self.model} takes no system message; "
                "it was put before the first user message"
            )
        train, held_out = splits
        skipped = self.task.skipped + bad.count
        task = replace(self.task, train=train, held_out=held_out, skipped=skipped)
        return replace(self, task=task), tuple(filter(None, notes))

    def _form_note(self) -> str:
        """A note if text prompts reach a model without its chat template, or through it."""
        has_template = bool(self.config.chat_template) or has_chat_template(self.tokenizer)
        names = (self.config.name, *self.config.environments.values())
        if any(name.startswith(AGENTS) for name in names):  # they send messages of their own
            return ""
        if "text" not in self.task.prompt_forms or self.is_plain or not has_template:
            return ""
        if self.task.system_prompt:
            return (
                "the prompts of the data are text; because there is a system prompt "
                f"(task.system_prompt), they reach {self.model} as a user's message through its "
                "chat template. Without one they are sent as they are"
            )
        return (
            f"the prompts are text, and {self.model} gets them as they are, without its chat "
            "template. task.options.chat true sends those of rows and data files as a user's "
            "message through it"
        )

    def _encoded(self, text: str, example: Example, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
            ids: list[int] = self.tokenizer.encode(
                text, verbose=False, add_special_tokens=add_special_tokens
            )
        except UnicodeEncodeError as error:
            raise DataError(
                f"{location(example)}: the prompt holds {text[error.start]!r}, half of a character "
                "(a lone surrogate); correct the text or remove the row"
            ) from error
        except Exception as error:  # tokenizers raises nothing narrower
            raise DataError(
                f"{location(example)}: the tokenizer of {self.model} refuses the prompt ({error}); "
                "correct the text or remove the row"
            ) from error
        token = max(ids, default=0)
        if self.vocabulary and token >= self.vocabulary:
            raise DataError(
                f"{location(example)}: token {token} ({self.tokenizer.decode([token])!r}) is "
                f"beyond the {self.vocabulary} that {self.model} knows: its tokenizer is another "
                "model's; set model.path to a folder whose files belong together",
                "model.path",
            )
        return ids

    def _refuse_huge(self, prompt: Prompt, example: Example) -> None:
        """Refuse a text that is too long whatever its tokens are, before it is tokenised."""
        texts = [prompt] if isinstance(prompt, str) else [str(m.get("content")) for m in prompt]
        size, longest, limit = sum(map(len, texts)), LONGEST_PROMPT, "any model"
        if self.limit:
            longest = min(longest, max(10_000, LONGEST_TOKEN * self.limit))
            limit = f"the {self.limit} tokens that it may have"
        if size > longest:
            raise DataError(
                f"{location(example)}: the prompt has {size:,} characters, too many for {limit}; "
                "shorten it or remove the row",
                "task.max_prompt_tokens",
            )

    def _too_long(self, example: Example, count: int) -> DataError:
        setting = "task.max_prompt_tokens"
        limit = f"{setting} {self.config.max_prompt_tokens}"
        remedy = "raise it, or shorten or remove the prompt"
        if self.context and count > self.context - self.max_new_tokens:
            setting = "rollout.max_new_tokens"
            limit = f"a context of {self.context} less {setting} {self.max_new_tokens}"
            remedy = (
                f"lower {setting}, shorten or remove the prompt, or use a model with a longer "
                "context"
            )
        text = f"{location(example)}: the prompt has {count} tokens, more than {limit}; {remedy}"
        return DataError(text, setting)

    def _text(
        self,
        prompt: Prompt,
        example: Example,
        render: Callable[[Sequence[Message]], str] | None = None,
    ) -> tuple[str, bool]:
        """The text for the model, by default with the beginning of its turn.

        Also whether a system message was folded.
        """
        if isinstance(prompt, str):
            return prompt, False
        problem: Exception | None = None
        for variant, is_folded in ((prompt, False), (fold_system(prompt), True)):
            try:
                if variant is not None:
                    return (render or self._template)(variant), is_folded
            except EngineError:
                raise
            except Exception as error:  # a template may raise anything
                problem = error
        raise DataError(
            f"{location(example)}: {self._template_file()} refuses these messages "
            f"({problem}); check their roles, or set task.chat_template to `plain` or a file",
            "task.chat_template",
        ) from problem

    def _template(self, messages: Sequence[Message]) -> str:
        if self.is_plain:
            return plain_text(messages)
        options = self._options()
        prefill = prefill_of(tuple(messages))
        if prefill:
            if (text := self._continued(messages, prefill, options)) is not None:
                return text
            messages = messages[:-1]
        return self._apply(messages, add_generation_prompt=True, **options) + prefill

    def _options(self) -> dict[str, Any]:
        """Options of the chat template; an error if there is none."""
        choice = self.config.chat_template
        options: dict[str, Any] = dict(self.config.chat_template_kwargs)
        if choice == "chatml":
            vocabulary = self.tokenizer.get_vocab()
            missing = [token for token in ("<|im_start|>", "<|im_end|>") if token not in vocabulary]
            if missing:
                raise DataError(
                    f"task.chat_template chatml needs the token {missing[0]}, which {self.model} "
                    "does not have; use the model's own template, `plain` or a Jinja file"
                )
            options["chat_template"] = CHATML
        elif choice:
            options["chat_template"] = read_template(choice)
        elif not has_chat_template(self.tokenizer):
            raise DataError(
                f"{self.model} has no chat template and the prompts of task {self.task.name} are "
                "chat messages; set task.chat_template to `plain` or to a Jinja file, or use a "
                "model with a chat template"
            )
        if self.template_knows_tools:
            options["tools"] = list(self.tools)
        return options

    def _continued(
        self, messages: Sequence[Message], prefill: str, options: Mapping[str, Any]
    ) -> str | None:
        """The template's own continuation, or None if it changes or drops the prefill."""
        try:
            text = self._apply(messages, continue_final_message=True, **options)
        except ValueError:
            return None
        stripped = prefill.rstrip()
        if text.endswith(prefill):
            return text
        return text + prefill[len(stripped) :] if text.endswith(stripped) else None

    def _template_file(self) -> str:
        """The chat template by the file that it is in, for error messages."""
        if self.config.chat_template:
            return f"the chat template {self.config.chat_template}"
        folder = Path(str(getattr(self.tokenizer, "name_or_path", "")) or "-")
        names = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
        file = next((folder / name for name in names if (folder / name).is_file()), None)
        return f"the chat template of {self.model}" + (f" ({file})" if file else "")

    def _try_template(self, messages: Sequence[Message], options: Mapping[str, Any]) -> None:
        """Refuse a template that takes too long or too much memory, tried in another process."""
        chosen = options.get("chat_template") or self.tokenizer.chat_template
        templates = list(chosen.values()) if isinstance(chosen, Mapping) else [chosen]
        special = getattr(self.tokenizer, "special_tokens_map", {})
        values = {**special, **options, "messages": [dict(m) for m in messages]}
        values.pop("chat_template", None)
        try:
            for template in templates:
                try_template(str(template), values)
        except TemplateLimitError as error:
            raise ModelError(
                f"{self._template_file()} {error} for one prompt; correct it, or set "
                "task.chat_template to `plain` or a file"
            ) from error

    def _apply(self, messages: Sequence[Message], **options: Any) -> str:
        if self.model not in EMBEDDED or "chat_template" in options:  # theirs is our own
            self._try_template(messages, options)
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    [dict(m) for m in messages], tokenize=False, **options
                )
            )
        except ImportError as error:
            raise MissingPackageError(
                f"chat templates need the package jinja2 ({error}); `pip install jinja2`"
            ) from error


def has_chat_template(tokenizer: Any) -> bool:
    """Whether the tokenizer can render chat messages."""
    template = getattr(tokenizer, "chat_template", None)
    return bool(getattr(tokenizer, "has_chat_template", template))


def plain_text(messages: Sequence[Message]) -> str:
    """Plain text for models without roles: contents with blank lines between, then a newline."""
    *before, last = (str(message.get("content") or "") for message in messages)
    if messages[-1].get("role") == "assistant":
        return "\n\n".join([*before, ""]).removesuffix("\n") + last
    return "\n\n".join([*before, last]) + "\n"


def without_tools(messages: Sequence[Message]) -> list[Message]:
    """Messages for a template that knows no tools: calls as text, results as the user's."""
    converted: list[Message] = []
    for role, group in groupby(messages, key=lambda message: str(message["role"])):
        if role == "tool":
            texts = (f"<tool_response>{m.get('content')}</tool_response>" for m in group)
            converted.append({"role": "user", "content": "\n".join(texts)})
            continue
        for message in group:
            calls = (json.dumps(call["function"]) for call in message.get("tool_calls", ()))
            text = "".join(f"<tool_call>{call}</tool_call>" for call in calls)
            converted.append({"role": role, "content": f"{message.get('content') or ''}{text}"})
    return converted


def read_template(path: str) -> str:
    """Read a Jinja chat template; an error names the path."""
    try:
        return read_text(Path(path).expanduser())
    except (OSError, ConfigError) as error:
        raise DataError(
            f"task.chat_template {path!r} cannot be read ({error}); give a Jinja file, `plain`, "
            "or nothing for the model's own",
            "task.chat_template",
        ) from error


def fold_system(messages: Sequence[Message]) -> tuple[Message, ...] | None:
    """Merge a leading system message into the first user message; None if there is none."""
    if len(messages) < 2 or messages[0].get("role") != "system":
        return None
    first = messages[1]
    content = f"{messages[0].get('content')}\n\n{first.get('content')}"
    return ({**first, "content": content}, *messages[2:])


def _form_and_size(prompt: Prompt) -> tuple[Any, int]:
    """The form of a prompt, by which templates tell them apart, and the bytes of its text.

    The bytes are 0 for a blank text, and for one that cannot be encoded.
    """
    form, text = None, prompt
    if not isinstance(prompt, str):
        form = tuple((m.get("role"), type(m.get("content")), *sorted(m)) for m in prompt)
        text = "".join(str(value) for m in prompt for key, value in m.items() if key != "role")
    try:
        return form, len(str(text).encode()) if str(text).strip() else 0
    except UnicodeEncodeError:
        return form, 0


def location(example: Example) -> str:
    """Where an example came from, for error messages."""
    return example.where or f"problem {example.key}"
