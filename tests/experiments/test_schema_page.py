"""docs/schema.md matches the store."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def schema_page() -> ModuleType:
    found = importlib.util.spec_from_file_location("schema_page", DOCS / "schema.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_page_is_what_the_tables_say(schema_page: ModuleType) -> None:
    page = (DOCS / "schema.md").read_text(encoding="utf-8")
    assert page == schema_page.page(), "run `python docs/schema.py`"
