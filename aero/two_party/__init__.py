"""Two-party private inference: the server holds the weights, the client the prompt, on SecretFlow SPU's Cheetah.

program: what a private forward pass computes (`end_to_end.ask` runs one). lattice: own protocols on RLWE ciphertexts.
runtime: the two processes and the link between them. serving: answering questions, also between hosts. cost: measured
operations and the cost model behind `aero cost`.
"""
