"""The pictures of recorded rollouts, each in a file of its own; records have their hashes."""

import os
from pathlib import Path

from abut.images import Image
from abut.messages import images_of
from abut.rollout.rollout import Rollout

# By the first bytes of a file.
_SUFFIXES = {
    b"\x89PNG": ".png",
    b"\xff\xd8": ".jpg",
    b"RIFF": ".webp",
    b"GIF8": ".gif",
    b"BM": ".bmp",
}


class ImageFolder:
    """Writes each picture of rollouts once, as the bytes that came: `HASH.png`, `HASH.jpg`, ….

    Processes may share a folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Create the folder if it is missing.

        Raises:
            OSError: it cannot be created; or it is a file.
        """
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._written: set[str] = set()

    def write(self, rollout: Rollout) -> None:
        """Write the pictures that are not there yet, those after the end of the row among them.

        Raises:
            OSError: a file cannot be written.
        """
        spans = [*rollout.images, *(span for branch in rollout.branches for span in branch.images)]
        said = [
            image for message in rollout.messages for image in images_of(message.get("content"))
        ]
        for image in [*(span.image for span in spans), *said]:
            if image.hash not in self._written:
                self._write(image)
                self._written.add(image.hash)

    def _write(self, image: Image) -> None:
        suffix = next(end for start, end in _SUFFIXES.items() if image.data.startswith(start))
        path = self.path / f"{image.hash}{suffix}"
        if path.exists():
            return
        # Under another name until it is whole: a reader may look, and this process be killed.
        begun = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        begun.write_bytes(image.data)
        begun.replace(path)
