"""Chat templates: what they write around messages, found by rendering and proved."""

from abut.template.image_processor import ImageProcessor

__all__ = ["ImageProcessor"]
