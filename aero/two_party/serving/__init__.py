"""Private questions between hosts: tunnel, TLS, handshake, session."""
