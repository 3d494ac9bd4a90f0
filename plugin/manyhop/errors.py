"""Every error that manyhop raises on purpose.

    ManyhopError
    ├── InputError (also ValueError)      an argument or a file that does not make sense
    │   ├── GraphError                    the topology: ids, lengths, dtypes, weights, times
    │   ├── FeatureError                  a feature tensor: length, dtype, kind
    │   └── StateError                    a state_dict that does not belong to this loader
    ├── RankError (also RuntimeError)     another rank failed, is late, is gone or was called differently; names it
    ├── StaleStepError (also RuntimeError)  a captured step computed something else than the eager step
    ├── CapacityError (also MemoryError)  something does not fit in memory, reported before it is tried, or on a disk
    └── MissingExtraError (also ImportError)  an optional package is needed; names the extra that brings it

Each message states what was expected, what came, and what to do.

Exceptions of the user's code (transforms, samplers, datasets) reach the caller as they are. A note names the batch;
``error.failed_batch`` is ``(epoch, batch)``, both from 0.
"""

from manyhop.hints import pip_install


class ManyhopError(Exception):
    """Base of all errors of manyhop."""


class InputError(ManyhopError, ValueError):
    """An argument does not make sense."""


class GraphError(InputError):
    """The topology, its weights or its times are wrong."""


class FeatureError(InputError):
    """A feature tensor does not fit the graph or cannot be gathered."""


class StateError(InputError):
    """A saved state does not belong to this loader, embedding or optimizer."""


class RankError(ManyhopError, RuntimeError):
    """This rank is well, but another one is not, so they cannot go on together.

    Attributes:
        ranks: the ranks at fault; empty where that cannot be known.
    """

    def __init__(self, message: str, *, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class StaleStepError(ManyhopError, RuntimeError):
    """A replay of a captured step computed something else than the step does eagerly, whose results are in place."""


class CapacityError(ManyhopError, MemoryError):
    """Something does not fit in memory, raised before the allocation is tried; or on a disk, when that is full."""


class MissingExtraError(ManyhopError, ImportError):
    """An optional package is missing or too old; the message has the command that brings it.

    Args:
        package: what is needed.
        extra: the extra of manyhop that brings it.
        purpose: what needs it.
        problem: what is wrong with it; ``None``: it is not installed.
        advice: what to do; ``None``: install the extra.
    """

    def __init__(
        self, package: str, extra: str, purpose: str, *, problem: str | None = None, advice: str | None = None
    ) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', {problem or 'which is not installed'}. "
            f"{advice or f'Install it with: {pip_install(extra)}'}"
        )
