"""All maths is tested on the CPU, so that a GPU does not change the numbers."""

from collections.abc import Iterator

import mlx.core as mx
import pytest
from hypothesis import settings

settings.register_profile("maths", settings.get_profile("tests"), max_examples=25)
settings.load_profile("maths")


@pytest.fixture(scope="module", autouse=True)
def _on_the_cpu() -> Iterator[None]:
    """Other folders' tests use the default device: a GPU where there is one."""
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)
