"""Memory of rollouts with screenshots, measured in separate processes."""

from benchmarks.figures import Need, Row
from benchmarks.own_process import run_module
from benchmarks.workbench import Workbench

ABUT = "abut"
# Caches of decoded pixels and of tensors, see abut/images.py and template/image_processor.py.
_CACHES = (256 + 512) * 2**20


def measure(workbench: Workbench) -> Row:
    """Play rollouts with screenshots; make the tensors of one row, and of two rows in turn."""
    scale = workbench.scale
    (width, height), rollouts, shown = (
        scale.image_size,
        scale.image_rollouts,
        scale.image_counts[-1],
    )
    row = Row(
        "image_memory",
        f"hold {rollouts} rollouts with {shown} screenshots of {width} x {height} each",
        equal="nothing; the sizes of the files and pixels of all pictures are known",
        notes=[
            "The largest growth of the process. While playing, it holds the files of the pictures "
            "and two caches of 256 and 512 MiB. The tensors of a row are made for one forward "
            "pass; while they are joined, the tensors of the single pictures are in memory too.",
        ],
    )
    workbench.peer("pillow", "PIL")
    workbench.peer("transformers")
    sizes = [str(number) for number in (width, height, shown)]
    folder = str(workbench.folder)
    played = run_module("image_holding", folder, *sizes, "play", str(rollouts))
    one, two = (run_module("image_holding", folder, *sizes, "rows", rows) for rows in ("1", "2"))
    if played["peak"] is None:
        row.notes.append("Not measured, because this system has no /proc/self/status.")
        return row
    row.add("playing", {ABUT: [played["peak"]]}, unit="B")
    row.add("the files of all pictures", {ABUT: [played["files"]]}, unit="B")
    row.add("the pixels of all pictures (not held)", {ABUT: [played["pixels"]]}, unit="B")
    row.add("the tensors of one row", {ABUT: [one["tensors"]]}, unit="B")
    row.add("a pass over one row", {ABUT: [one["peak"]]}, unit="B")
    row.add("one pass over each of two rows", {ABUT: [two["peak"]]}, unit="B")
    most = played["files"] + _CACHES + scale.image_slack_bytes
    row.needs.append(Need("memory while playing", played["peak"], "at most", most, "B"))
    row.needs.append(
        Need(
            "memory, one pass over each of two rows ÷ a pass over one row",
            two["peak"] / one["peak"],
            "at most",
            1.1,
        )
    )
    return row
