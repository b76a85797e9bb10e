"""What Flower carries is what was given to it, and few objects, however many tensors there are."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from coterie.engines.flower import packet_of, records_of
from coterie.engines.wire import Malformed, Packet

ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3).T,
    np.array(True),
    np.zeros((0, 4)),
    np.array([[1, -2]], dtype=np.int64),
    np.array([0.5, np.nan, np.inf]),
    np.broadcast_to(np.float16(3), (2, 2)),
]


@pytest.mark.parametrize("arrays", [[], ARRAYS[2:3], ARRAYS])
def test_a_packet_comes_back_as_it_was(arrays: list[Any]) -> None:
    packet = packet_of(records_of(Packet("{}", arrays)))
    assert packet.text == "{}"
    for mine, other in zip(packet.arrays, arrays, strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(mine, other)


def test_many_arrays_are_as_many_objects_as_one() -> None:
    one, many = (len(get_all_nested_objects(records_of(Packet("{}", ARRAYS[:1] * count)))) for count in (1, 50))
    assert one == many


def record(form: Any, data: Any = None, **more: Any) -> RecordDict:
    arrays = ArrayRecord({"bytes": Array(np.zeros(16, dtype=np.uint8) if data is None else data)})
    return RecordDict({"arrays": arrays, "text": ConfigRecord({"text": "{}", "form": json.dumps(form), **more})})


def npy(header: str, numbers: bytes = b"", version: bytes = b"\x01\x00") -> RecordDict:
    """A record whose array is stored with a header of one's own."""
    text = header.encode("latin1")
    return stored(b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + numbers)


def stored(data: bytes) -> RecordDict:
    """A record whose array is these bytes."""
    arrays = ArrayRecord({"bytes": Array("uint8", (16,), "numpy.ndarray", data)})
    return RecordDict({"arrays": arrays, "text": ConfigRecord({"text": "{}", "form": '[["|u1", [16]]]'})})


def test_bytes_under_a_plain_header_are_a_packet() -> None:
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (16,)}\n"
    assert len(packet_of(npy(header, b"x" * 16)).arrays) == 1


@pytest.mark.parametrize(
    "records",
    [
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (99000000000000,)}\n", b"x" * 16),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (16,)}\n", b"x" * 15),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2, 8)}\n", b"x" * 16),
        npy("{'descr': '|S16', 'fortran_order': False, 'shape': (1,)}\n", b"x" * 16),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (16,)}\n", b"x" * 16, b"\x02\x00"),
        npy("{'descr': '|u1', 'fortran_order'"),
        npy("(" * 9000),
        npy(""),
        record([["|u1", [1] * 65]]),
        stored(b""),
        stored(b"PK\x03\x04"),
        RecordDict({"text": ConfigRecord({"text": "{}", "form": "[" * 5000})}),
        record([["<f8", [3]]]),
        record([["<f8", [1]]]),
        record([["<f8", [-2]]]),
        record([["<f8", [2.0]]]),
        record([["<f8", [2**70]]]),
        record([["O", [2]]]),
        record([["S16", [1]]]),
        record([["nonsense", [2]]]),
        record([["<f8"]]),
        record({"a": 1}),
        record(7),
        record([["<f8", [2]]], np.zeros(2)),
        record([["|u1", [4, 4]]], np.zeros((4, 4), dtype=np.uint8)),
        record([["<f8", [2]]], text=3),
        RecordDict({"text": ConfigRecord({"text": "{}", "form": "[["})}),
        RecordDict({"text": ConfigRecord({"text": "{}", "form": "[]"})}),
        RecordDict({"text": ConfigRecord({})}),
        RecordDict(),
    ],
)
def test_records_that_are_no_packet_are_refused(records: RecordDict) -> None:
    with pytest.raises(Malformed):
        packet_of(records)
