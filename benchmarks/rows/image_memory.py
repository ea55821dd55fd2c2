"""What rollouts with screenshots hold, measured in processes of their own."""

from benchmarks.figures import Need, Row
from benchmarks.own_process import run_module
from benchmarks.workbench import Workbench

ABUT = "abut"
# Caches of decoded pixels and of tensors, see abut/images.py and template/image_processor.py.
_CACHES = (256 + 512) * 2**20


def measure(workbench: Workbench) -> Row:
    """Play rollouts with screenshots; make the tensors of one row, and of two in turn."""
    scale = workbench.scale
    (width, height), rollouts, shown = (
        scale.image_size,
        scale.image_rollouts,
        scale.image_counts[-1],
    )
    row = Row(
        "image_memory",
        f"hold {rollouts} rollouts with {shown} screenshots of {width} x {height} each",
        equal="nothing is compared, only counted: the files and pixels of all pictures are known",
        notes=[
            "What the process grew by, at most. While playing, the pictures' files are held, and "
            "two caches of 256 and 512 MiB. The tensors of a row are made for one forward pass; "
            "while they are joined, those of its single pictures are there as well.",
        ],
    )
    workbench.peer("pillow", "PIL")
    workbench.peer("transformers")
    sizes = [str(number) for number in (width, height, shown)]
    folder = str(workbench.folder)
    played = run_module("image_holding", folder, *sizes, "play", str(rollouts))
    one, two = (run_module("image_holding", folder, *sizes, "rows", rows) for rows in ("1", "2"))
    if played["peak"] is None:
        row.notes.append("Not measured: this system has no /proc/self/status.")
        return row
    row.add("playing", {ABUT: [played["peak"]]}, unit="B")
    row.add("the files of all pictures", {ABUT: [played["files"]]}, unit="B")
    row.add("the pixels of all pictures, not held", {ABUT: [played["pixels"]]}, unit="B")
    row.add("tensors of one row", {ABUT: [one["tensors"]]}, unit="B")
    row.add("a pass over one row", {ABUT: [one["peak"]]}, unit="B")
    row.add("passes over two rows, one each", {ABUT: [two["peak"]]}, unit="B")
    most = played["files"] + _CACHES + scale.image_slack_bytes
    row.needs.append(Need("memory while playing", played["peak"], "at most", most, "B"))
    row.needs.append(
        Need("memory, passes over two rows ÷ over one", two["peak"] / one["peak"], "at most", 1.1)
    )
    return row
