"""The commands `aero ask`, `aero serve` and `aero certificates`: a private question to a model, here or elsewhere."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aero.cli.display import Display, printable
from aero.errors import UserError, check_file, one_line

if TYPE_CHECKING:
    from aero.two_party.runtime.settings import Settings
    from aero.two_party.serving.handshake import Description
    from aero.two_party.serving.session import Answered

ASK = """Ask a model privately. The client learns the logits and the model's description (see `aero serve`), not the
weights. The server learns the prompt's length and how many tokens are asked for, nothing else of the text. The prompt
takes one forward pass, each later token a pass over one position, with a cache of secret-shared keys and values.
--checkpoint and --model run client and server on this machine; --server asks an `aero serve` elsewhere."""
SERVE = """Answer private questions one at a time, each in a new process. Prints one line for each question. Ctrl-C
stops the server. Clients learn logits and the description (architecture, sizes, program, protocol settings,
tokenizer, public prefix), not the weights."""
LONGEST_WAIT_S = 1e6
SMALL_MODEL = 20_000_000
"""Weights; smaller models do not write sense."""
_print_line = partial(print, flush=True)


def add_commands(commands: Any) -> None:
    ask = commands.add_parser("ask", help="ask a model privately", description=ASK)
    ask.set_defaults(run=_ask)
    ask.add_argument("prompt", help="the text to continue; - reads standard input")
    target = ask.add_mutually_exclusive_group(required=True)
    _add_model(target)
    target.add_argument("--server", metavar="HOST:PORT", help="where `aero serve` listens")
    add = ask.add_argument
    add("--tokens", type=int, default=1, metavar="N", help="number of new tokens (default 1)")
    add("--temperature", type=float, default=0.0, help="sample at this temperature; 0 (default): the most likely token")
    add("--seed", type=int, default=0, help="random seed for sampling")
    add("--program", help="as --program of `aero serve`; with --server: refuse any other program")
    add("--expect", metavar="SHA256", help="refuse a server whose description has a different SHA-256")
    add("--wait", type=float, default=60, metavar="S", help="seconds to wait for a busy server (default 60)")
    add("--no-cache", action="store_true", help="a whole forward pass for each token")
    add("--json", action="store_true", help="print one JSON object at the end")
    serve = commands.add_parser("serve", help="serve a model for private questions", description=SERVE)
    serve.set_defaults(run=_serve)
    _add_model(serve.add_mutually_exclusive_group(required=True))
    add, listen = serve.add_argument, "127.0.0.1:9731"
    add("--listen", default=listen, metavar="HOST:PORT", help=f"default {listen}; IPv6: [::1]:9731")
    programs = "as_published, tuned (default) or as_written; also with switches: tuned-last_row (docs/two_party.md)"
    add("--program", default="tuned", help=programs)
    own = "allow this project's own cryptography on non-loopback addresses"
    add("--unreviewed", action="store_true", help=own)
    add("--most-tokens", type=int, default=256, metavar="N", help="maximum new tokens per question (default 256)")
    add("--once", action="store_true", help="end after one question; exit status 0 if it was answered")
    add("--total", type=float, default=3600, metavar="S", help="time limit of a question, seconds (default 3600)")
    for command in (ask, serve):
        _add_common(command.add_argument)
    making = "make a CA and certificates for `ask` and `serve`"
    certificates = commands.add_parser("certificates", help=making, description=making)
    certificates.set_defaults(run=_certificates)
    certificates.add_argument("folder", type=Path, help="new files are written here; existing ones are never replaced")
    hosts = "name or address of the server, may be repeated (default localhost, 127.0.0.1)"
    certificates.add_argument("--host", action="append", help=hosts)


def _add_model(group: Any) -> None:
    group.add_argument("--checkpoint", type=Path, metavar="FILE", help="a model trained here")
    families = "a Hugging Face GPT-2, GPT-NeoX or Llama"
    group.add_argument("--model", type=Path, dest="checkpoint", metavar="FOLDER", help=families)


def _add_common(add: Callable[..., Any]) -> None:
    """Arguments of both `ask` and `serve`."""
    prefix = "public text, computed in the clear, before every prompt (`ask --server` uses that of the server)"
    add("--prefix", default="", metavar="TEXT", help=prefix)
    add("--tokenizer", help="tokenizer file (default: the model's own)")
    longest = "seconds to wait for one message from the other party, computing time included (default 120)"
    add("--timeout", type=float, default=120, metavar="S", help=longest)
    add("--certificate", type=Path, help="this side's certificate (PEM); with --key and --ca")
    add("--key", type=Path, help="private key of --certificate (PEM)")
    add("--ca", type=Path, help="the authority that signed the other side's certificate")
    add("--insecure", action="store_true", help="unencrypted TCP; the network can read it")


def _certificates(chosen: argparse.Namespace) -> None:
    from aero.two_party.serving.tls import VALID_DAYS, make_certificates

    hosts = chosen.host or ["localhost", "127.0.0.1"]
    make_certificates(chosen.folder, hosts)
    print(
        f"certificates for a server at {', '.join(hosts)} and for a client are in {chosen.folder}, valid {VALID_DAYS} "
        "days; the server needs server.pem, server.key and ca.pem, the client client.pem, client.key and ca.pem"
    )


def _serve(chosen: argparse.Namespace) -> int:
    from aero.two_party.serving.listener import Listener
    from aero.two_party.serving.tls import context_for

    if chosen.most_tokens < 1:
        raise UserError(f"--most-tokens must be at least 1, got {chosen.most_tokens}")
    _check_files(chosen)
    settings = _settings(chosen)
    context = context_for(chosen.listen, _credentials(chosen), chosen.insecure, server=True)
    with closing(Listener(chosen.listen, context)) as listener:  # before libraries are loaded: its port may be in use
        from aero.cli.published import publish
        from aero.two_party.serving.session import Server

        published, _ = publish(chosen.checkpoint, chosen.tokenizer, _program_for(chosen), chosen.prefix)
        server, description = Server(published, settings, chosen.most_tokens), published.description
        security = "mutually authenticated TLS" if context is not None else "plain TCP"
        _print_line(f"{description} at {listener.address}, {security}; description {description.sha256}")
        answered = failed = 0
        listener.end_on_signals()
        try:
            while True:
                success = server.answer(listener, _print_line)
                answered, failed = answered + success, failed + (not success)
                if chosen.once:
                    return int(not success)
        except KeyboardInterrupt:
            _print_line(f"stopped; {answered} answered, {failed} failed")
            return 0


def _program_for(chosen: argparse.Namespace) -> str:
    """The program to serve: on other than loopback addresses with SPU's own primitives alone, unless asked for more."""
    from aero.two_party.program.optimizations import reviewed
    from aero.two_party.runtime.addresses import is_loopback, split_address

    safe = reviewed(chosen.program)
    if chosen.program == safe or is_loopback(split_address(chosen.listen)[0]):
        return chosen.program
    if chosen.unreviewed:
        _print_line("note: uses cryptography of this project that nobody else has reviewed (docs/lattice.md)")
        return chosen.program
    _print_line(f"note: serves {safe}, SPU's own primitives; --unreviewed allows {chosen.program} (docs/lattice.md)")
    return safe


def _check_files(chosen: argparse.Namespace) -> None:
    """UserError for a missing checkpoint, or files of another kind, before libraries are loaded for seconds."""
    if not chosen.checkpoint.exists():
        raise UserError(
            f"{chosen.checkpoint} does not exist; `make example` trains one; README.md tells how to get SmolLM2"
        )
    configured = chosen.checkpoint / "config.json"
    check_file(configured if configured.is_file() else chosen.checkpoint)
    if chosen.tokenizer is not None:
        check_file(Path(chosen.tokenizer))


def _ask(chosen: argparse.Namespace) -> None:
    # Refused before anything is connected or loaded.
    if chosen.tokens < 1:
        raise UserError(f"--tokens {chosen.tokens} must be at least 1")
    if chosen.checkpoint is not None:
        _check_files(chosen)
        if chosen.expect or _credentials(chosen) is not None:
            raise UserError("--expect and certificates are for --server; leave them out with --checkpoint")
    elif chosen.prefix:
        raise UserError("--prefix is the server's to set; leave it out")
    elif not 0 < chosen.wait < LONGEST_WAIT_S:
        raise UserError(f"--wait {chosen.wait:g} must be above 0 and below {LONGEST_WAIT_S:,.0f} seconds")
    prompt = sys.stdin.read() if chosen.prompt == "-" else chosen.prompt
    if not prompt:
        raise UserError("the prompt is empty; a private question needs at least one token")
    settings = _settings(chosen)
    with closing(Display(prompt, chosen.json)) as display:
        display.say("loading libraries")
        from aero.two_party.serving.answer import Sampling

        Sampling(1, chosen.temperature, chosen.seed)
        (_ask_here if chosen.checkpoint is not None else _ask_server)(chosen, prompt, settings, display)


def _ask_here(chosen: argparse.Namespace, prompt: str, settings: Settings, display: Display) -> None:
    from aero.cli.published import publish
    from aero.two_party.serving.session import ask_here

    display.say("loading and checking the model")
    program = chosen.program or "tuned"
    published, tokenizer = publish(chosen.checkpoint, chosen.tokenizer, program, chosen.prefix)
    display.note(published.checked)
    _answer(chosen, prompt, published.description, tokenizer, settings, partial(ask_here, published), display)


def _ask_server(chosen: argparse.Namespace, prompt: str, settings: Settings, display: Display) -> None:
    from aero.cli.published import tokenizer_of_text
    from aero.data.tokenizer import load_tokenizer
    from aero.two_party.serving.session import Client
    from aero.two_party.serving.tls import context_for
    from aero.two_party.serving.tunnel import dial

    display.say(f"connecting to {chosen.server}")
    context = context_for(chosen.server, _credentials(chosen), chosen.insecure, server=False)
    client = Client(dial(chosen.server, context, chosen.wait), chosen.wait)
    try:
        description = client.description
        if chosen.expect and not (len(chosen.expect) >= 8 and description.sha256.startswith(chosen.expect.lower())):
            raise UserError(f"the server has another model than expected: {description}, {description.sha256}")
        if chosen.program and chosen.program != description.program.partition("@")[0]:
            raise UserError(f"the server runs {description.program}, not {chosen.program}; leave out --program")
        given = chosen.tokenizer
        tokenizer = tokenizer_of_text(client.tokenizer) if given is None else load_tokenizer(given)
        if tokenizer.sha256 != description.tokenizer_sha256:
            raise UserError("the tokenizer is not the one that the server published; leave out --tokenizer")
        display.note(f"the server says: {client.checked}")
        _answer(chosen, prompt, description, tokenizer, settings, client.ask, display)
    finally:
        client.close()


def _answer(
    chosen: argparse.Namespace,
    prompt: str,
    description: Description,
    tokenizer: Any,
    settings: Settings,
    ask: Callable[..., Answered],
    display: Display,
) -> None:
    """Ask, print the tokens as they come, then what they cost."""
    from aero.cli.published import check_ids
    from aero.two_party.program.weights import weight_shapes
    from aero.two_party.serving.answer import Sampling

    sampling = Sampling(tokenizer.vocabulary, chosen.temperature, chosen.seed)
    shapes = weight_shapes(description.parsed, description.model_config, description.program).values()
    if (weights := sum(map(math.prod, shapes))) < SMALL_MODEL:
        display.note(
            f"note: this model has only {weights / 1e6:.1f} million weights (GPT-2: 124) and may answer nonsense"
        )
    if description.prefix:
        display.note(f"public text before the prompt: {printable(tokenizer.decode(description.prefix))!r}")
    if not description.cacheable and chosen.tokens > 1 and not chosen.no_cache:
        display.note(f"no cache of keys and values with {description}: every token takes a whole pass")
    ids: list[int] = []

    def on_control(said: tuple[str, Any]) -> None:
        kind, value = said
        if kind == "progress":
            display.say(value)
        else:
            ids.append(value)
            text = tokenizer.decode(ids)
            # The first bytes of a character are shown with its last.
            display.show(text.rstrip("\ufffd") if len(ids) < chosen.tokens else text)

    prompt_ids = tokenizer.encode(prompt, special=not description.prefix)
    check_ids(prompt_ids, tokenizer, description)
    answered = ask(prompt_ids, chosen.tokens, sampling, settings, on_control, not chosen.no_cache)
    rounds, unknown = _rounds(description, len(prompt_ids), len(answered.costs), answered.cached)
    display.close()
    if chosen.json:
        found = asdict(answered) | {"text": tokenizer.decode(ids), "prompt_tokens": len(prompt_ids), "rounds": rounds}
        print(json.dumps(found | {"rounds_unknown": unknown, "description": asdict(description)}, indent=1))
        return
    print(f"\n{_summary(answered, len(prompt_ids), rounds, unknown)}")


def _summary(answered: Answered, prompt_tokens: int, rounds: float | None, unknown: str | None) -> str:
    """A table of what each kind of pass took, and the round trips of all of them."""
    costs = answered.costs
    parts = {"set-up, once a session": [answered.setup], f"prompt, {prompt_tokens} tokens": costs[:1]}
    if costs[1:]:
        what = "one row each, after the cache" if answered.cached else "a whole pass each"
        parts[f"{len(costs) - 1} more tokens, {what}"] = costs[1:]
    wide = max(map(len, parts))
    lines = [f"{'':{wide}}{'MB from client':>16}{'MB from server':>16}{'messages':>16}{'seconds':>16}"]
    for name, some in parts.items():
        client, server = sum(one.bytes_client for one in some) / 1e6, sum(one.bytes_server for one in some) / 1e6
        messages, seconds = sum(one.messages for one in some), sum(one.seconds for one in some)
        lines.append(f"{name:{wide}}{client:16.1f}{server:16.1f}{messages:16}{seconds:16.1f}")
    said = f"about {rounds:.0f} rounds (composed)" if rounds is not None else f"rounds unknown ({unknown})"
    seconds = sum(one.seconds for one in costs) / len(costs)
    return "\n".join([*lines, f"{said}; {seconds:.1f} s a token without set-up"])


def _rounds(description: Description, tokens: int, passes: int, cached: bool) -> tuple[float | None, str | None]:
    """Round trips of all passes, composed from measured operations as in `aero cost`; or None and the reason."""
    from aero.two_party.cost.cost_model import folder_of_costs, measured_operations
    from aero.two_party.program.forward import operations
    from aero.two_party.program.generation import slots_for
    from aero.two_party.program.operations import without_public

    total, model = 0.0, (description.parsed, description.model_config, description.program)
    try:
        measured = measured_operations(folder_of_costs(Path()))
        for length in range(tokens, tokens + passes):
            past = slots_for(len(description.prefix) + length - 1, model[1].context)
            counts = operations(*model, 1, past) if cached and length > tokens else operations(*model, length)
            for operation, count in counts.items():
                one = without_public(operation)
                total += count * measured.rounds(one.name, one.shape)
    except Exception as error:  # a damaged file of measurements must not cost the answer, which is there
        return None, one_line(error)
    return total, None


def _settings(chosen: argparse.Namespace) -> Settings:
    from aero.two_party.runtime.settings import Settings

    total = getattr(chosen, "total", None)
    connect = min(90.0, chosen.timeout)
    return Settings(receive_timeout_s=chosen.timeout, connect_timeout_s=connect, total_timeout_s=total)


def _credentials(chosen: argparse.Namespace) -> tuple[Path, Path, Path] | None:
    """Certificate, key and the CA's certificate, if they are given."""
    given = chosen.certificate, chosen.key, chosen.ca
    if any(given) and not all(given):
        raise UserError("--certificate, --key and --ca belong together; give all three or none")
    return given if all(given) else None
