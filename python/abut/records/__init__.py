"""Records of rollouts: write them to disk, read them, and show them."""

from abut.records.read import read_records
from abut.records.recorder import JsonlRecorder, ParquetRecorder
from abut.records.viewer.page import Page, view

__all__ = ["JsonlRecorder", "Page", "ParquetRecorder", "read_records", "view"]
