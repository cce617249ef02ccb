"""A way to a broker on which answers about topics can be changed: as if the broker did not know a topic for a while.

So does a broker that has just started, or that lags behind its controller, in a cluster of several.
"""

import contextlib
import socket
import struct
import threading
from typing import Self

UNKNOWN_TOPIC_OR_PARTITION = 3


class ForgetfulBroker:
    """Passes on what a broker answers, with this port in the place of its own, so that clients stay on this way.

    forgotten: topics of which it says that it does not know them. told: how often it said so.
    without_offsets: topics of one partition, of which it knows no offsets.
    """

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._listening = socket.create_server((host, 0))
        self.port = self._listening.getsockname()[1]
        self.bootstrap = f"{host}:{self.port}"
        self.forgotten: frozenset[str] = frozenset()
        self.told = 0
        self.without_offsets: frozenset[str] = frozenset()
        self._address = bytes([len(host) + 1]) + host.encode()
        self._sockets: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        for each in (self._listening, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._upstream)
                self._sockets += [client, server]
                threading.Thread(target=self._up, args=(client, server), daemon=True).start()
                threading.Thread(target=self._down, args=(client, server), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := client.recv(1 << 16):
                server.sendall(piece)
            server.shutdown(socket.SHUT_WR)

    def _down(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError), server.makefile("rb") as answers:
            while len(head := answers.read(4)) == 4:
                answer = answers.read(struct.unpack(">i", head)[0])
                client.sendall(head + self._changed(answer))
            client.shutdown(socket.SHUT_RDWR)

    def _changed(self, answer: bytes) -> bytes:
        """Of answers with metadata, the broker's port and the error before each forgotten topic; of those with offsets,
        the error behind a topic's name and its one partition's number. Sizes stay.
        """
        for topic in self.without_offsets:
            name = bytes([len(topic) + 1]) + topic.encode() + b"\x02"
            found = name + struct.pack(">ih", 0, 0)
            self.told += found in answer
            answer = answer.replace(found, name + struct.pack(">ih", 0, UNKNOWN_TOPIC_OR_PARTITION))
        there = self._address + struct.pack(">i", self._upstream[1])
        if there not in answer:
            return answer
        answer = answer.replace(there, self._address + struct.pack(">i", self.port))
        for topic in self.forgotten:
            name = bytes([len(topic) + 1]) + topic.encode()
            known, unknown = (struct.pack(">h", code) + name for code in (0, UNKNOWN_TOPIC_OR_PARTITION))
            self.told += known in answer
            answer = answer.replace(known, unknown)
        return answer
