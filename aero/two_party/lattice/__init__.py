"""Matrix multiplication and table lookup on ring-LWE ciphertexts. Research code that nobody outside has reviewed."""
