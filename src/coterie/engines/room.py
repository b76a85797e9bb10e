"""Where the rows of all clients lie: in memory as far as a budget goes, and in temporary files beyond."""

from __future__ import annotations

import errno
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

import torch
from torch import Tensor

from coterie.contract.payload import empty_like
from coterie.errors import CoterieError, SitesLost
from coterie.models import Models

SHARE = 0.25
"""Of the machine's memory, for the clients' state of one run where no budget is given."""

STATE = "clients' state beyond client_memory"


class OnDisk:
    """Rows of models or of a tensor in files without a name, which vanish with the process, one for each tensor.

    Rows are read and written by their numbers, each at its place, so that nothing but those in use is in memory and
    no more of the disk is taken than was written.
    """

    def __init__(self, like: Models | Tensor, count: int) -> None:
        self.like = like[:1].clone()
        self._count = count
        self._files: dict[str, IO[bytes]] = {}
        with _place_for_files():
            for name, tensor in _tensors(self.like).items():
                file = self._files[name] = tempfile.TemporaryFile(prefix="coterie-state-")  # noqa: SIM115 lives as we do
                file.truncate(count * _width(tensor))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rows: Tensor | slice) -> Models | Tensor:
        """Copies of rows ``(r,)``."""
        index, found = self._index(rows), {}
        for name, tensor in _tensors(self.like).items():
            here = torch.empty(len(index), *tensor.shape[1:], dtype=tensor.dtype)
            for first, place, count in _runs(index):
                _read(self._files[name], _bytes(here[place : place + count]), first * _width(tensor))
            found[name] = here.to(tensor.device)
        return Models(self.like.layout, found) if isinstance(self.like, Models) else found[""]

    def __setitem__(self, rows: Tensor | slice, values: Models | Tensor) -> None:
        """Overwrite rows ``(r,)``; ``SitesLost`` where the disk is full."""
        index, given = self._index(rows), _tensors(values)
        for name, tensor in _tensors(self.like).items():
            own = given[name].detach().to("cpu", tensor.dtype).expand(len(index), *tensor.shape[1:]).contiguous()
            for first, place, count in _runs(index):
                _write(self._files[name], _bytes(own[place : place + count]), first * _width(tensor))

    def fits(self, values: Models | Tensor) -> bool:
        """Whether rows such as those of ``values`` can be written here."""
        mine, given = _tensors(self.like), _tensors(values)
        kinds = [
            {name: (tensor.shape[1:], tensor.dtype) for name, tensor in tensors.items()} for tensors in (mine, given)
        ]
        return kinds[0] == kinds[1]

    def gathered(self, rows: Tensor) -> Models | Tensor:
        """Rows ``(r,)`` in a file of their own that the system maps, so that they need not fit in memory at once."""
        found = {}
        for name, tensor in _tensors(self.like).items():
            shape = (len(rows), *tensor.shape[1:])
            whole = mapped(shape, tensor.dtype)
            for first, place, count in _runs(rows):
                _read(self._files[name], _bytes(whole[place : place + count]), first * _width(tensor))
            found[name] = whole
        return Models(self.like.layout, found) if isinstance(self.like, Models) else found[""]

    def _index(self, rows: Tensor | slice) -> Tensor:
        return torch.arange(self._count)[rows] if isinstance(rows, slice) else rows


@dataclass
class Room:
    """Gives storage for one row a client.

    Attributes:
        budget: bytes that may lie in memory.
        taken: bytes that do.
    """

    budget: int = field(default_factory=lambda: int(SHARE * memory()))
    taken: int = 0

    @classmethod
    def of(cls, gigabytes: float | None) -> Room:
        """Room with a budget in GB; a share of the machine's memory where none is given."""
        return cls() if gigabytes is None else cls(int(gigabytes * 1e9))

    def rows(self, like: Models | Tensor | Sequence[str], count: int) -> Models | Tensor | list[str] | OnDisk:
        """Room for ``count`` rows such as those of ``like``; what they hold is not said."""
        if not isinstance(like, Models | Tensor):
            return [""] * count
        size = count * sum(_width(tensor) for tensor in _tensors(like).values())
        if self.taken + size > self.budget:
            return OnDisk(like, count)
        self.taken += size
        return empty_like(like, count)

    def exchange(self, former: object, rows: Models | Tensor | Sequence[str]) -> bool:
        """Give back what ``former`` rows have taken, if any; whether ``rows`` may stay in memory instead of them."""
        self.taken -= _taken(former)
        if self.taken + _taken(rows) > self.budget:
            return False
        self.taken += _taken(rows)
        return True


def memory() -> int:
    """Bytes of memory that this machine has; 8 GiB where it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 8 * 2**30


def mapped(shape: tuple[int, ...], dtype: torch.dtype, what: str = STATE) -> Tensor:
    """A tensor of zeros in a temporary file without a name, which vanishes with the process.

    Raises
    ------
    SitesLost
        The disk has no room for ``what``.
    """
    count = math.prod(shape)
    if count == 0:
        return torch.zeros(shape, dtype=dtype)
    with _place_for_files(what), tempfile.NamedTemporaryFile(prefix="coterie-state-", delete=False) as file:
        try:
            file.truncate(count * dtype.itemsize)
            rows = torch.from_file(file.name, shared=True, size=count, dtype=dtype).view(shape)
        finally:
            os.unlink(file.name)  # before what may take long: a kill then leaves no file
        if hasattr(os, "posix_fallocate"):  # to write where the disk is full would end the process
            os.posix_fallocate(file.fileno(), 0, count * dtype.itemsize)
    return rows


def _tensors(rows: Models | Tensor) -> dict[str, Tensor]:
    return rows.tensors if isinstance(rows, Models) else {"": rows}


def _taken(rows: object) -> int:
    """Bytes of memory, as far as they are counted."""
    return sum(len(rows) * _width(t) for t in _tensors(rows).values()) if isinstance(rows, Models | Tensor) else 0


def _width(tensor: Tensor) -> int:
    """Bytes of one row."""
    return tensor[:1].numel() * tensor.element_size()


def _runs(index: Tensor) -> Iterator[tuple[int, int, int]]:
    """Rows with following numbers: the first number, where it stands in ``index: (r,)``, and how many."""
    if len(index) == 0:
        return
    starts = [0, *((index.diff() != 1).nonzero().flatten() + 1).tolist()]
    for start, stop in zip(starts, [*starts[1:], len(index)], strict=True):
        yield int(index[start]), start, stop - start


def _bytes(rows: Tensor) -> memoryview:
    return rows.reshape(-1).view(torch.uint8).numpy().data if rows.numel() else memoryview(b"")


def _read(file: IO[bytes], into: memoryview, offset: int) -> None:
    done = 0
    while done < len(into):
        count = os.preadv(file.fileno(), [into[done:]], offset + done)
        if count == 0:
            raise CoterieError("a temporary file with clients' state was cut off by another process")
        done += count


def _write(file: IO[bytes], values: memoryview, offset: int) -> None:
    done = 0
    with _place_for_files():
        while done < len(values):
            done += os.pwrite(file.fileno(), values[done:], offset + done)


@contextmanager
def _place_for_files(what: str = STATE) -> Iterator[None]:
    """What the system says of a full disk, or of too many files, as what can be done about it."""
    try:
        yield
    except OSError as error:
        where = tempfile.tempdir or "any folder for temporary files"
        few = error.errno in (errno.EMFILE, errno.ENFILE)
        remedy = "allow more open files (ulimit -n)" if few else "free space, or let TMPDIR name a larger disk"
        raise SitesLost(
            f"{what} does not fit in {where} ({error.strerror}): {remedy}; coterie resume "
            "then goes on from the last checkpoint"
        ) from error
