"""End an exchange on all ranks after a failure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from manyhop.errors import RankError
from manyhop.features.exchange.headers import ExchangeEndedError, Tag, lost
from manyhop.ranks.world import World


class ExchangeFailure:
    """Base of exchanges: after a failure, an exchange is closed on all ranks."""

    world: World
    _name: str
    _store_key: str
    """Key of the exchange in the ranks' store: the same on all ranks, unique per exchange."""

    _ended: RankError | None = None
    """The error that ended the exchange."""

    _of_all: tuple[type[Exception], ...] = (ExchangeEndedError,)
    """Errors that all ranks raise alike, after which exchanges go on."""

    released_later: bool = False
    """Whether somebody calls :meth:`release` after a failure, when no step waits for rows that may not come."""

    lacks_rows: bool = False
    """Whether rows that :meth:`release` was called for had been handed out before they came."""

    @property
    def failure(self) -> RankError | None:
        """The error that ended the exchange, if one has."""
        return self._ended

    def release(self) -> None:
        """After a failure, stop waiting for rows on this rank's GPU."""

    def rest(self) -> None:
        """Give back what other exchanges may use until the next call."""

    @contextlib.contextmanager
    def _failing(self, tag: Tag) -> Iterator[None]:
        """End the exchange on all ranks if the body raises, unless all ranks raise alike."""
        if self._ended is not None:
            raise RankError(str(self._ended), ranks=self._ended.ranks)
        try:
            yield
        except self._of_all:
            raise
        except RankError as error:
            self._ended = error
            raise
        except RuntimeError as error:
            self._disconnect()
            self._ended = lost(self._name, self._store_key, tag, self.world, error)
            raise self._ended from error
        except BaseException as error:
            self._ended = RankError(f"{self._name}: an exchange was broken off: {error!r}")
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        """Close the connections, which unblocks the ranks that wait for this one."""
        raise NotImplementedError
