"""Own two-party protocols on RLWE ciphertexts and on additive shares, run between programs of SPU.

**Research code. Nobody outside this project has reviewed it, and it is not constant-time: do not protect real secrets
with it.** `matmul` multiplies a secret-shared matrix by the server's, `lookup` reads rows of the server's table,
`share_steps` are what each party computes on its own share, `ring` reads and writes SPU's shares, `polynomials` is the
ring arithmetic and sampling. Semi-honest security, as in SPU's Cheetah: both parties follow the protocol.
"""
