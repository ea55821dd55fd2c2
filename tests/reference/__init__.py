"""The algorithms of abut in plain Python: the definition, and the oracle of the tests.

Invariant: nothing here is incremental. Every answer is computed from the whole text by the
definition, with the stages of the `tokenizers` package as they are, so that the native module,
which takes shortcuts, has something to be compared with. It is slow, and only tests and readers
import it (it needs `tokenizers`). Read `added`, `byte_table`, `file`, `cut`, `edge`, `encode`,
`seam`, `tokenizer`, `trajectory`: each imports only what stands before it, and of the rest of abut
only `errors` and `parts`.
"""

from tests.reference.added import AddedToken
from tests.reference.cut import hard_tokens
from tests.reference.edge import Edge
from tests.reference.encode import Token
from tests.reference.seam import Merge, Seam
from tests.reference.tokenizer import Tokenizer
from tests.reference.trajectory import Columns, Trajectory, collate

__all__ = [
    "AddedToken",
    "Columns",
    "Edge",
    "Merge",
    "Seam",
    "Token",
    "Tokenizer",
    "Trajectory",
    "collate",
    "hard_tokens",
]
