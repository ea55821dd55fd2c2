"""An `@evaluation_test` as its decorator left it: parameters, function, rows, and their dataset.

Invariant: one test, one choice of keywords; if there are several, an error names them all. A row
comes out of the dataset as it went in, or the dataset is not made.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from abut.agents.dataset_agent import JsonRow, preview, row_text
from abut.envs.task import RolloutTask
from abut.eval_protocol.imports import require_package

_PARAMETERS = "__ep_params__"
_RESERVED = ("row", "rows")

ROW = "eval_row"
"""The dataset's column of rows."""

# Fields that differ each time a row is made.
_OF_THE_MOMENT = {"created_at", "execution_metadata", "pid"}


@dataclass(frozen=True)
class LoadedTest:
    """One test.

    Attributes:
        name: `module:test`.
        function: the user's function, sync or async.
        parameters: all arguments of the decorator, as attributes.
        kwargs: the keywords that the function gets besides rows.
    """

    name: str
    function: Any
    parameters: Any
    kwargs: Mapping[str, Any]

    @property
    def mode(self) -> str:
        """`pointwise`, `groupwise` or `all`."""
        return str(getattr(self.parameters.mode, "value", self.parameters.mode))

    @property
    def completion_params(self) -> dict[str, Any]:
        """The completion parameters of the test's first model."""
        return dict((self.parameters.completion_params or [None])[0] or {})

    def rows(self) -> list[Any]:
        """Return its `EvaluationRow`s, each with a `row_id`, as Eval Protocol would play them.

        Raises:
            ValueError: there are none.
        """
        rows = _filtered([row.model_copy(deep=True) for row in _input_rows(self)], self)
        from eval_protocol.human_id import generate_id, num_combinations

        for row in rows:
            if row.input_metadata.row_id is None:
                index = abs(hash(row)) % num_combinations()
                row.input_metadata.row_id = generate_id(seed=0, index=index)
        if not rows:
            raise ValueError(
                f"{self.name} has no rows\nhint: check its input_dataset, filtered_row_ids and "
                "max_dataset_rows, and the variable EP_MAX_DATASET_ROWS"
            )
        return rows


def load_test(test: Any, kwargs: Mapping[str, Any] | None) -> LoadedTest:
    """Find a test, for the arguments of `eval_test`.

    Raises:
        TypeError: `test` is not a test.
        ValueError: a module has several tests or none, or there are several choices of keywords.
        ImportError: the module does not exist.
        MissingExtraError: eval_protocol is not installed.
    """
    require_package()
    if isinstance(test, str):
        name, test = _find(test)
    elif not hasattr(test, _PARAMETERS):
        raise TypeError(
            f"eval_test({test!r}): not an @evaluation_test\n"
            'hint: name a test, as in eval_test("tests.my_eval"), or pass the decorated function'
        )
    else:
        name = f"{test.__module__}:{test.__name__}"
    parameters = getattr(test, _PARAMETERS)
    if isinstance(parameters, Mapping):
        raise ValueError(
            f"{name} was decorated by a version of eval-protocol that is too old\n"
            "hint: pip install 'abut[eval_protocol]' installs a newer one"
        )
    return LoadedTest(name, test._origin_func, parameters, _chosen(name, parameters, kwargs))


def _find(path: str) -> tuple[str, Any]:
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ModuleNotFoundError(
            f"eval_test({path!r}): the module {error.name!r} cannot be found\n"
            "hint: the module's folder must be on sys.path; `python -m` adds the current folder",
            name=error.name,
        ) from error
    tests = {key: value for key, value in vars(module).items() if hasattr(value, _PARAMETERS)}
    if not tests:
        raise ValueError(f"{module_name} has no @evaluation_test")
    if name and name not in tests:
        raise ValueError(f"{module_name} has no test {name!r}; its tests are {', '.join(tests)}")
    if not name and len(tests) > 1:
        raise ValueError(
            f"{module_name} has {len(tests)} tests: {', '.join(tests)}\n"
            f'hint: name one, as in eval_test("{module_name}:{next(iter(tests))}")'
        )
    name = name or next(iter(tests))
    return f"{module_name}:{name}", tests[name]


def _chosen(name: str, parameters: Any, kwargs: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the keywords for the user's function."""
    if kwargs is None:
        choices: Sequence[Any] = parameters.evaluation_test_kwargs or [None]
        if len(choices) > 1:
            listed = "\n".join(f"  kwargs={dict(choice or {})!r}" for choice in choices)
            raise ValueError(
                f"{name} has {len(choices)} evaluation_test_kwargs:\n{listed}\n"
                "hint: choose one for the reward: eval_test(…, kwargs=…)"
            )
        kwargs = choices[0] or {}
    if taken := [key for key in _RESERVED if key in kwargs]:
        raise ValueError(
            f"kwargs has {taken[0]!r}, but abut passes this argument to the test itself"
        )
    return dict(kwargs)


def _input_rows(test: LoadedTest) -> list[Any]:
    p = test.parameters
    if p.data_loaders is not None:
        loaders = p.data_loaders if isinstance(p.data_loaders, list | tuple) else [p.data_loaders]
        rows = [row for loader in loaders for result in loader.load() for row in result.rows]
        return rows[: p.max_dataset_rows]
    if p.input_dataset is not None:
        from eval_protocol.common_utils import load_jsonl

        paths = [path for one in p.input_dataset for path in (one if _is_list(one) else [one])]
        # With `combine_datasets=False` each file is a test of its own, so each is cut.
        files = [paths] if p.combine_datasets else [[path] for path in paths]
        return [
            row
            for lines in ([line for path in file for line in load_jsonl(path)] for file in files)
            for row in p.dataset_adapter(lines[: p.max_dataset_rows])
        ]
    from eval_protocol.pytest.generate_parameter_combinations import (
        generate_parameter_combinations,
    )

    # Messages and rows come in many shapes; this unifies them and cuts to max_dataset_rows.
    combinations = generate_parameter_combinations(
        None, [None], p.input_messages, p.input_rows, None, p.max_dataset_rows, True, None
    )
    from eval_protocol.models import EvaluationRow

    rows = []
    for _, _, conversations, ready, _, _ in combinations:
        rows += [EvaluationRow(messages=list(messages)) for messages in conversations or []]
        rows += list(ready or [])
    return rows


def _filtered(rows: list[Any], test: LoadedTest) -> list[Any]:
    p = test.parameters
    if p.filtered_row_ids is not None:
        rows = [row for row in rows if row.input_metadata.row_id in p.filtered_row_ids]
    if p.preprocess_fn is None:
        return rows
    if p.data_loaders is not None:
        raise ValueError(
            f"{test.name} has both preprocess_fn and data_loaders\n"
            "hint: pass preprocess_fn to the data loader, as Eval Protocol requires"
        )
    return list(p.preprocess_fn(rows))


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def json_row_of(row: Any) -> JsonRow:
    """Return a row of the dataset.

    Args:
        row: an `EvaluationRow` with an id.

    Raises:
        ValueError: the row cannot be restored from JSON.
    """
    row_id = row.input_metadata.row_id
    prompt = preview(((one.role, one.content) for one in row.messages), otherwise=str(row_id))
    return JsonRow(prompt, _text_of(row), {"row_id": row_id})


def row_of(task: RolloutTask, name: str) -> Any:
    """Return a fresh copy of a task's row.

    Raises:
        UnplayableRow: the task has no row.
    """
    from eval_protocol.models import EvaluationRow

    text = row_text(task, ROW, name, dataset="eval_test(…).dataset()")
    return EvaluationRow.model_validate_json(text)


def _text_of(row: Any) -> str:
    text: str = row.model_dump_json(exclude=_OF_THE_MOMENT)
    before = row.model_dump(exclude=_OF_THE_MOMENT)
    after = type(row).model_validate_json(text).model_dump(exclude=_OF_THE_MOMENT)
    if before != after:
        changed = [key for key in before if before[key] != after.get(key)]
        raise ValueError(
            f"row {row.input_metadata.row_id!r}: {', '.join(changed)} cannot be kept as JSON\n"
            "hint: use lists, dicts with string keys, strings, numbers and booleans"
        )
    return text
