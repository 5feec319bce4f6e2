"""libp2p's protobuf messages, with only the fields that are needed here, each with its length in front."""

from __future__ import annotations

import asyncio
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from dht.daemon.calls import read_varint, varint

_FIELD = descriptor_pb2.FieldDescriptorProto
NUMBER, BYTES, PEER = _FIELD.TYPE_INT32, _FIELD.TYPE_BYTES, _FIELD.TYPE_MESSAGE


def field(name: str, place: int, kind: int = NUMBER, many: bool = False) -> Any:
    """Return the descriptor of one field of a message."""
    label = _FIELD.LABEL_REPEATED if many else _FIELD.LABEL_OPTIONAL
    return _FIELD(name=name, number=place, type=kind, label=label, type_name="Message.Peer" if kind == PEER else None)


def message_class(package: str, *fields: Any) -> Any:
    """Make a message class with these fields; protobuf skips all others."""
    peer = descriptor_pb2.DescriptorProto(name="Peer", field=[field("id", 1, BYTES), field("addrs", 2, BYTES, True)])
    message = descriptor_pb2.DescriptorProto(name="Message", nested_type=[peer], field=fields)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(
        descriptor_pb2.FileDescriptorProto(
            name=f"muster/{package}.proto", package=f"muster.{package}", syntax="proto2", message_type=[message]
        )
    )
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"muster.{package}.Message"))


async def read_message(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    """Read a length and its message; raises ValueError over `bytes_max`, and what `read_varint` raises."""
    length = await read_varint(reader)
    if length > bytes_max:
        raise ValueError("a longer message than anybody needs")
    return await reader.readexactly(length)


def framed(message: bytes) -> bytes:
    """Return a message with its length in front."""
    return varint(len(message)) + message
