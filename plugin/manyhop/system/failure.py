"""Notes on exceptions that name the batch that failed."""

from __future__ import annotations

_NOTE = "manyhop: while making batch "


def note_batch(error: BaseException, *, epoch: int, batch: int, replay: str = "") -> None:
    """Add a note that names the batch, and the attribute ``failed_batch``: ``(epoch, batch)``, both from 0.

    An exception object that is raised again for another batch has the note of the last one only.

    Args:
        replay: code that creates the batch again, with ``{epoch}`` and ``{batch}``.
    """
    again = f"; to make it again: {replay.format(epoch=epoch, batch=batch)}" if replay else ""
    note = f"{_NOTE}{batch} of epoch {epoch}{again}"
    attributes = vars(error)  # add_note() would fail for a class that forbids assignment, such as a frozen dataclass
    before = attributes.get("__notes__")
    notes = [n for n in before if not str(n).startswith(_NOTE)] if isinstance(before, list) else []
    attributes.update(failed_batch=(epoch, batch), __notes__=[*notes, note])


def failed_batch(error: BaseException) -> tuple[int, int] | None:
    """Return ``(epoch, batch)`` of the batch that failed with ``error``; ``None`` if no batch is known."""
    found = vars(error).get("failed_batch")
    return found if isinstance(found, tuple) else None


def text_of(error: BaseException) -> str:
    """Return class and message of an exception, even if its ``__str__`` fails."""
    try:
        message = str(error)
    except Exception:  # of a user's class
        message = "(its message cannot be shown)"
    return f"{type(error).__name__}: {message}"
