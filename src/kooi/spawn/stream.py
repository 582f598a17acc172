"""Our end of a box's stream where that is one socket."""

from __future__ import annotations

import socket


class SocketStream:
    """A stream over one socket: read and write side are the same descriptor."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self.read_fd = self.write_fd = connection.fileno()

    def close(self) -> None:
        """Close it; safe twice."""
        self._socket.close()
