//! DNS messages, as far as a name server needs them that knows addresses alone (RFC 1035, RFC 6891). Reads no sockets.
