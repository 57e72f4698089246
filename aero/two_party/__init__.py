"""Two-party private inference: the server holds the weights, the client the prompt, SecretFlow SPU's Cheetah between.

`end_to_end.ask` runs a private forward pass; `program` is what it computes, `operations` what that is made of,
`measure` and `compose` what it costs, `parties` and `relay` the two processes and the link between them. A question of
a person goes through `serving` and, inside the parties, `answer`; between hosts through a `tunnel`, after a `hello`.
"""
