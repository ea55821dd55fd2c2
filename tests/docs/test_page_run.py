"""A page is run as its reader runs it, and what it shows must be what is printed."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.page_run import (
    numbers_of,
    page_blocks,
    run_page,
    same_but_for_numbers,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell and a terminal")

PAGE = """# A page

```python title="ask.py"
name = input("you> ")
print(f"{name}: {len(name)} letters")
```

Install it, then run it:

```sh
pip install nothing-at-all
python \\
    ask.py
```

```text
you> Ann
Ann: 3 letters
```

```python title="add to ask.py"
QUARTER = 1 / 4
```

```sh
python -c 'print(1 / 4)'
```
```text
0.25
```
"""


@pytest.fixture
def ran(tmp_path: Path) -> Any:
    """Runs a page, given its text."""

    def run(text: str, **options: Any) -> list[str]:
        page = tmp_path / "page.md"
        page.write_text(text)
        return [typed.commands for typed in run_page(page, tmp_path, **options)]

    return run


def test_files_are_written_and_commands_are_typed(ran: Any, tmp_path: Path) -> None:
    assert ran(PAGE) == ["python     ask.py", "python -c 'print(1 / 4)'"]
    assert (tmp_path / "ask.py").read_text().endswith('letters")\nQUARTER = 1 / 4\n')
    assert [block.line for block in page_blocks(tmp_path / "page.md")] == [3, 10, 16, 21, 25, 28]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("3 letters\n`", "4 letters\n`"),
        ("0.25\n", "0.250\n"),
        ("(1 / 4", "(1 / 0"),
        ("ask.py\n`", "a\n`"),
    ],
    ids=["typed", "printed", "fails", "no file"],
)
def test_a_page_that_is_wrong_is_noticed(ran: Any, old: str, new: str) -> None:
    assert PAGE.count(old) == 1
    with pytest.raises(AssertionError):
        ran(PAGE.replace(old, new))


def test_what_differs_is_compared_as_the_test_says(ran: Any) -> None:
    wrong = PAGE.replace("0.25\n", "0.3\n")
    assert len(ran(wrong, differs={"python -c": same_but_for_numbers})) == 2
    assert len(ran(wrong, not_run=["python -c"])) == 1
    with pytest.raises(AssertionError, match="has no such command"):
        ran(PAGE, not_run=["python -d"])
    with pytest.raises(AssertionError, match="quarter"):
        same_but_for_numbers("0.3 thirds", "0.25 quarters")
    assert numbers_of("from 0.25 to -1, in 2e-3 s") == [0.25, -1, 0.002]
