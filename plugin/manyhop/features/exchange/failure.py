"""Exchanges that are lost for good when one fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from manyhop.errors import RankError
from manyhop.features.exchange.headers import ExchangeEndedError, Tag, lost
from manyhop.world import World


class Losing:
    """What exchanges do when something goes wrong in one of them."""

    world: World
    _name: str
    _store_key: str
    """Names the exchange in the ranks' store: the same on all ranks, another for every exchange."""

    _ended: RankError | None = None
    """Why there are no further exchanges."""

    _of_all: tuple[type[Exception], ...] = (ExchangeEndedError,)
    """Errors that all ranks have: the next exchange may go well."""

    @contextlib.contextmanager
    def _losing(self, tag: Tag) -> Iterator[None]:
        """Errors of the body, but for those that all ranks have, end the exchange for good, on all ranks."""
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
            self._hang_up()
            self._ended = lost(self._name, self._store_key, tag, self.world, error)
            raise self._ended from error
        except BaseException as error:
            self._ended = RankError(f"{self._name}: an exchange was broken off: {error!r}")
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        """Close the connections, which wakes the ranks that wait for this one."""
        raise NotImplementedError
