"""The way from the training loop to a formula is short: few calls, few files, few parameters."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import grpo_engine
from grpo_engine.maths import trust
from grpo_engine.trainer import _train
from tests.engine.runs import events_of, settings, write_world

ENGINE = str(Path(grpo_engine.__file__).parent)


def test_the_way_from_the_loop_to_the_clip_is_short(tmp_path: Path) -> None:
    paths: list[list[FrameType]] = []

    def watch(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code is trust.clip.__code__ and not paths:
            paths.append(frames_from_loop(frame))

    config = settings(write_world(tmp_path), steps=1, evaluation={"pinned": 0})
    sys.setprofile(watch)
    try:
        events_of(config, tmp_path / "run")
    finally:
        sys.setprofile(None)
    codes = [frame.f_code for frame in paths[0]]
    names = [code.co_name for code in codes]
    assert names[0] == "_train"
    assert len(codes) - 1 <= 8, names
    assert len({code.co_filename for code in codes}) <= 5, names
    for code in codes:
        assert code.co_argcount + code.co_kwonlyargcount <= 5, code.co_name


def frames_from_loop(frame: FrameType | None) -> list[FrameType]:
    """The engine's calls from `_train` down to a frame."""
    frames: list[FrameType] = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(ENGINE):
            frames.insert(0, frame)
        if frame.f_code is _train.__code__:
            return frames
        frame = frame.f_back
    raise AssertionError("the clip is not called by the training loop")
