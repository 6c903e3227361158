"""The descriptions of services that server reflection returns: their methods and messages.

The services of other protocols are registered under their original names, with messages of
rowcast's own packages, which are the same on the wire. No proto file describes such services, so
that a process can load the original files, too. This module builds their descriptions, in a pool of
their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message


class MethodMessages(NamedTuple):
    """The messages of a method.

    Attributes:
      request: The message that a client sends.
      response: The message that the service returns.
    """

    request: Descriptor
    response: Descriptor

    @classmethod
    def of(cls, request: type[Message], response: type[Message]) -> Self:
        """Returns the messages of a method by their classes."""
        return cls(request.DESCRIPTOR, response.DESCRIPTOR)


Methods = Mapping[str, MethodMessages]
"""The messages of the methods of a service, by name."""


def pool_of(services: Mapping[str, Methods], described: Sequence[str]) -> DescriptorPool:
    """Returns the descriptions of services, with all messages.

    Args:
      services: The methods of services that no proto file describes, by the services' full names.
      described: The full names of the services that proto files describe.
    """
    pool = DescriptorPool()
    files: dict[str, FileDescriptor] = {}
    generated: Any = descriptor_pool.Default()
    for name in described:
        _add_file(generated.FindFileContainingSymbol(name), pool, files)
    for name, methods in services.items():
        messages = [message for method in methods.values() for message in method]
        for message in messages:
            _add_file(message.file, pool, files)
        pool.AddSerializedFile(_service_file(name, methods).SerializeToString())
    return pool


def _service_file(name: str, methods: Methods) -> FileDescriptorProto:
    """Returns a file that describes one service."""
    package, _, short_name = name.rpartition(".")
    file = FileDescriptorProto(name=f"{name}.proto", package=package, syntax="proto3")
    file_names = {message.file.name for method in methods.values() for message in method}
    file.dependency.extend(sorted(file_names))
    service = file.service.add(name=short_name)
    for method_name, method in methods.items():
        service.method.add(
            name=method_name,
            # The leading dot marks a name as complete.
            input_type=f".{method.request.full_name}",
            output_type=f".{method.response.full_name}",
        )
    return file


def _add_file(file: FileDescriptor, pool: DescriptorPool, files: dict[str, FileDescriptor]) -> None:
    """Adds a file, after the files that it imports: a pool rejects a file without its imports."""
    if file.name in files:
        return
    files[file.name] = file
    for dependency in file.dependencies:
        _add_file(dependency, pool, files)
    pool.AddSerializedFile(file.serialized_pb)
