"""The tensors of several rows of images, joined from those of single images.

Invariant: a rule is used only for a tensor of which it gave, for the probe images, exactly what the
processor itself gives for rows of them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

Tensors: TypeAlias = Mapping[str, Any]
"""Tensors by the name of the model's argument."""


def cat(rows: Sequence[Sequence[Any]]) -> Any:
    """Join all images along the first dimension: LLaVA's pixels, Qwen's patches and grids."""
    import torch

    return torch.cat([image for row in rows for image in row])


def padcat(rows: Sequence[Sequence[Any]]) -> Any:
    """As `cat`, with zeros after all other dimensions: LLaVA-NeXT has tiles in the second one."""
    import torch

    return torch.cat(_padded([image for row in rows for image in row], from_dimension=1))


def perrow(rows: Sequence[Sequence[Any]]) -> Any:
    """Join the images of a row along the second dimension, and pad the rows: Idefics3's tiles."""
    import torch

    images = [image for row in rows for image in row]
    padded = iter(_padded(images, from_dimension=2))
    joined = [torch.cat([next(padded) for _ in row], dim=1) for row in rows]
    return torch.cat(_padded(joined, from_dimension=1))


Rule: TypeAlias = Callable[[Sequence[Sequence[Any]]], Any]

RULES: tuple[Rule, ...] = (cat, padcat, perrow)
"""From the narrowest to the widest."""


def find_rules(
    singles: Mapping[Any, Tensors], rows: Sequence[tuple[Sequence[Sequence[Any]], Tensors]]
) -> dict[str, Rule] | None:
    """Return the rule of each tensor; None if a tensor follows none of them.

    Args:
        singles: the tensors of each image alone.
        rows: rows of such images, each row with one at least, and the tensors of all together.
    """
    found: dict[str, Rule] = {}
    for name in rows[0][1]:
        for rule in RULES:
            if all(_holds(rule, name, singles, *of_rows) for of_rows in rows):
                found[name] = rule
                break
        else:
            return None
    return found


def join(rules: Mapping[str, Rule], rows: Sequence[Sequence[Tensors]]) -> dict[str, Any]:
    """Return the tensors of rows of images; rows without an image add nothing.

    Args:
        rules: by the name of the tensor.
        rows: the tensors of each image.
    """
    filled = [row for row in rows if row]
    if not filled:
        return {}
    return {name: rule([[i[name] for i in row] for row in filled]) for name, rule in rules.items()}


def equal(ours: Any, theirs: Any) -> bool:
    """Return whether two tensors have the same shape, type and values."""
    import torch

    return (
        isinstance(ours, torch.Tensor)
        and isinstance(theirs, torch.Tensor)
        and ours.dtype == theirs.dtype
        and torch.equal(ours, theirs)
    )


def _holds(
    rule: Rule,
    name: str,
    singles: Mapping[Any, Tensors],
    rows: Sequence[Sequence[Any]],
    together: Tensors,
) -> bool:
    try:
        ours = rule([[singles[image][name] for image in row] for row in rows])
    except (RuntimeError, TypeError, IndexError, KeyError):  # shapes that do not fit, no tensors
        return False
    return equal(ours, together.get(name))


def _padded(tensors: Sequence[Any], *, from_dimension: int) -> list[Any]:
    """Return the tensors with zeros behind, so that they differ in no later dimension."""
    from torch.nn.functional import pad

    sizes = [tuple(tensor.shape[from_dimension:]) for tensor in tensors]
    widest = [max(of_dimension) for of_dimension in zip(*sizes, strict=True)]

    def missing(size: tuple[int, ...]) -> list[int]:
        # Pairs from the last dimension on: nothing before, and what is missing behind.
        behind = [want - have for have, want in zip(size, widest, strict=True)]
        return [amount for last in reversed(behind) for amount in (0, last)]

    return [pad(tensor, missing(size)) for tensor, size in zip(tensors, sizes, strict=True)]
