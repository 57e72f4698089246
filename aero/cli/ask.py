"""The commands `aero ask`, `aero serve` and `aero certificates`: a private question to a model, here or elsewhere."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aero.errors import UserError, one_line

if TYPE_CHECKING:
    from aero.two_party.runtime.settings import Settings
    from aero.two_party.serving.answer import Cost
    from aero.two_party.serving.handshake import Description
    from aero.two_party.serving.session import Answered
    from aero.two_party.serving.tls import Credentials

ASK = """The client learns the model's answer and nothing else of it; the server learns the prompt's length in tokens
and the number of new ones, and nothing else of either. Every new token is a whole forward pass over all tokens before
it: nothing is kept in between. --checkpoint runs a client and a server process on this machine, --server asks an
`aero serve` elsewhere."""
SERVE = """Answers one question after the other, each in a process of its own, and says a line on each. Ctrl-C ends it.
What it publishes to clients: architecture, sizes, program, protocol settings, tokenizer."""
LONGEST_WAIT_S = 1e6
"""As the time-outs of `Settings`: a clock of the system holds no infinite one."""
JOINERS = "\u200c\u200d"
"""Format characters that letters of many scripts, and emoji, are written with; they move and hide nothing."""


def add_commands(commands: Any) -> None:
    """Add the parsers of the three commands to the subparsers of `aero`; each sets `run`, a function of its choices."""
    ask = commands.add_parser("ask", help="ask a model privately", description=ASK)
    ask.set_defaults(run=_ask)
    ask.add_argument("prompt", help="the text to continue; - reads it from standard input")
    whom = ask.add_mutually_exclusive_group(required=True)
    whom.add_argument("--checkpoint", type=Path, help="a model on this machine, for a server process of this question")
    whom.add_argument("--server", metavar="HOST:PORT", help="where `aero serve` listens")
    ask.add_argument("--tokens", type=int, default=1, metavar="N", help="new tokens, a forward pass each (default 1)")
    ask.add_argument("--temperature", type=float, default=0.0, help="choose at random; 0 (default): the most likely")
    ask.add_argument("--seed", type=int, default=0, help="of the random choice")
    ask.add_argument(
        "--program",
        help="tuned, as_written, tuned-lattice_products, ...; with --server: insist on it (there any)",
    )
    ask.add_argument("--expect", metavar="SHA256", help="insist on the server's description, as `aero serve` prints it")
    ask.add_argument("--wait", type=float, default=60, metavar="S", help="for a busy server, seconds (default 60)")
    ask.add_argument("--json", action="store_true", help="print one JSON object at the end instead of text")
    serve = commands.add_parser("serve", help="answer private questions with a model", description=SERVE)
    serve.set_defaults(run=_serve)
    serve.add_argument("--checkpoint", type=Path, required=True, help="the model")
    serve.add_argument("--listen", default="127.0.0.1:9731", metavar="HOST:PORT", help="default 127.0.0.1:9731")
    serve.add_argument(
        "--program",
        default="tuned",
        help="tuned (default), as_written, or one saving more or less: tuned-lattice_products",
    )
    serve.add_argument("--most-tokens", type=int, default=256, metavar="N", help="new tokens a question may ask for")
    serve.add_argument("--once", action="store_true", help="end after one question, with its success as exit status")
    serve.add_argument(
        "--total", type=float, default=3600, metavar="S", help="for a whole question, however slow its client (3600)"
    )
    for command in (ask, serve):
        command.add_argument("--tokenizer", help="the model's tokenizer (default: of the token files beside its run)")
        command.add_argument(
            "--timeout",
            type=float,
            default=120,
            metavar="S",
            help="longest wait for one message of the other party, its computing included, in seconds (default 120)",
        )
        command.add_argument("--certificate", type=Path, help="of this side, PEM; with --key and --ca")
        command.add_argument("--key", type=Path, help="of the certificate")
        command.add_argument("--ca", type=Path, help="the authority that signed the other side's certificate")
        command.add_argument("--insecure", action="store_true", help="plain TCP between hosts, which anybody can read")
    certificates = commands.add_parser("certificates", help="make a CA and certificates for `ask` and `serve`")
    certificates.set_defaults(run=_certificates)
    certificates.add_argument("folder", type=Path, help="where to write them")
    certificates.add_argument(
        "--host", action="append", help="name or address of the server, may be repeated (default localhost, 127.0.0.1)"
    )


def _certificates(chosen: argparse.Namespace) -> None:
    from aero.two_party.serving.tls import VALID_DAYS, make_certificates

    hosts = chosen.host or ["localhost", "127.0.0.1"]
    make_certificates(chosen.folder, hosts)
    print(
        f"certificates for a server at {', '.join(hosts)} and for a client are in {chosen.folder}, valid {VALID_DAYS} "
        "days; the server needs server.pem, server.key and ca.pem, the client client.pem, client.key and ca.pem"
    )


def _serve(chosen: argparse.Namespace) -> int:
    from aero.two_party.runtime.heap import collect, give_freed_memory_back, keep_what_is_there
    from aero.two_party.serving.session import Server
    from aero.two_party.serving.tls import context_for
    from aero.two_party.serving.tunnel import Listener

    if chosen.most_tokens < 1:
        raise UserError(f"--most-tokens must be at least 1, got {chosen.most_tokens}")
    give_freed_memory_back()
    context = context_for(chosen.listen, _credentials(chosen), chosen.insecure, server=True)
    settings = _settings(chosen)
    description, tokenizer, weights = _published(chosen.checkpoint, chosen.tokenizer, chosen.program, settings)
    listener = Listener(chosen.listen, context)
    server = Server(chosen.checkpoint, description, _text_of(tokenizer), settings, chosen.most_tokens, weights)
    security = "mutually authenticated TLS" if context is not None else "plain TCP"
    _say(f"{description} at {listener.address}, {security}; description {description.sha256}")
    answered = failed = 0
    interrupted = threading.Event()

    def interrupt(*_: Any) -> None:
        # Noted as well as raised: Python drops what is raised while a finished question's objects are taken away.
        interrupted.set()
        raise KeyboardInterrupt

    keep_what_is_there()
    signal.signal(signal.SIGINT, interrupt)
    try:
        while not interrupted.is_set():
            good = server.answer(listener, _say)
            answered, failed = answered + good, failed + (not good)
            collect()
            if chosen.once:
                return int(not good)
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()
    _say(f"stopped; {answered} answered, {failed} failed")
    return 0


def _ask(chosen: argparse.Namespace) -> None:
    from aero.two_party.serving.answer import Sampling

    # Refused before anything is connected or loaded.
    if chosen.tokens < 1:
        raise UserError(f"--tokens {chosen.tokens} must be at least 1")
    Sampling(1, chosen.temperature, chosen.seed)
    prompt = sys.stdin.read() if chosen.prompt == "-" else chosen.prompt
    if not prompt:
        raise UserError("the prompt is empty; a private question needs at least one token")
    settings = _settings(chosen)
    if chosen.checkpoint is not None:
        from aero.two_party.serving.session import ask_here

        if chosen.expect or _credentials(chosen) is not None:
            raise UserError("--expect and certificates are for --server; leave them out with --checkpoint")
        program = chosen.program or "tuned"
        description, tokenizer, weights = _published(chosen.checkpoint, chosen.tokenizer, program, settings)

        def ask(*question: Any) -> Answered:
            return ask_here(chosen.checkpoint, weights, description, *question)

        _answer(chosen, prompt, description, tokenizer, settings, ask)
        return
    from aero.two_party.serving.session import Client
    from aero.two_party.serving.tls import context_for
    from aero.two_party.serving.tunnel import dial

    if not 0 < chosen.wait < LONGEST_WAIT_S:
        raise UserError(f"--wait {chosen.wait:g} must be above 0 and below {LONGEST_WAIT_S:,.0f} seconds")
    context = context_for(chosen.server, _credentials(chosen), chosen.insecure, server=False)
    tunnel = dial(chosen.server, context, chosen.wait)
    client = Client(tunnel, chosen.wait)
    try:
        description = client.description
        if chosen.expect and not (len(chosen.expect) >= 8 and description.sha256.startswith(chosen.expect.lower())):
            raise UserError(f"the server has another model than expected: {description}, {description.sha256}")
        if chosen.program and chosen.program != description.program.partition("@")[0]:
            raise UserError(f"the server runs {description.program}, not {chosen.program}; leave out --program")
        tokenizer = _load_text(client.tokenizer) if chosen.tokenizer is None else _load(chosen.tokenizer)
        if tokenizer.sha256 != description.tokenizer_sha256:
            raise UserError("the tokenizer is not the one that the server published; leave out --tokenizer")
        _answer(chosen, prompt, description, tokenizer, settings, client.ask)
    finally:
        client.close()


def _answer(
    chosen: argparse.Namespace,
    prompt: str,
    description: Description,
    tokenizer: Any,
    settings: Settings,
    ask: Callable[..., Answered],
) -> None:
    """Ask, print the tokens as they come, then what they cost."""
    from aero.two_party.serving.answer import Sampling

    _check_vocabulary(tokenizer, description)
    sampling = Sampling(tokenizer.vocabulary, chosen.temperature, chosen.seed)
    ids: list[int] = []
    shown = ""

    def on_token(token: int, _: Cost) -> None:
        nonlocal shown
        ids.append(token)
        if not chosen.json:
            text = tokenizer.decode(ids)
            # The first bytes of a character: shown when the others have come.
            whole = text.rstrip("\ufffd") if len(ids) < chosen.tokens else text
            print(_harmless(whole[len(shown) :]), end="", flush=True)
            shown = whole

    prompt_ids = tokenizer.encode(prompt)
    answered = ask(prompt_ids, chosen.tokens, sampling, settings, on_token)
    rounds, unknown = _rounds(description, len(prompt_ids), len(answered.costs))
    if chosen.json:
        found = asdict(answered) | {"text": tokenizer.decode(ids), "prompt_tokens": len(prompt_ids), "rounds": rounds}
        print(json.dumps(found | {"rounds_unknown": unknown, "description": asdict(description)}, indent=1))
        return
    costs = answered.costs
    count, seconds = len(costs), [cost.seconds for cost in costs]
    megabytes = [sum(getattr(cost, f"bytes_{who}") for cost in costs) / 1e6 for who in ("client", "server")]
    said = f"about {rounds:.0f} rounds (composed)" if rounds is not None else f"rounds unknown ({unknown})"
    messages = sum(cost.messages for cost in costs)
    a_token = f"{sum(seconds) / count:.1f} s a token"
    if count > 1:
        a_token = (
            f"a token {sum(megabytes) / count:.1f} MB, {messages / count:.0f} messages, "
            + (f"about {rounds / count:.0f} rounds, " if rounds is not None else "")
            + f"{sum(seconds) / count:.1f} s"
        )
    print(
        f"\n\n{count} token{'s' * (count > 1)} after {len(prompt_ids)}: {megabytes[0]:.1f} MB from the client, "
        f"{megabytes[1]:.1f} MB from the server, {messages} messages, {said}; {a_token}"
    )
    setup = answered.setup
    print(f"set-up, once a session: {setup.bytes / 1e6:.1f} MB, {setup.messages} messages, {setup.seconds:.1f} s")


def _harmless(text: str) -> str:
    """Text with control characters but for line feed and tab, and format characters but for `JOINERS`, written out: a
    server that publishes a tokenizer of its own says what a token looks like, and a terminal obeys what it is told. A
    format character may turn around the order in which the rest of a line is shown."""
    plain = f"\n\t{JOINERS}"
    return "".join(
        char if char in plain or unicodedata.category(char) not in ("Cc", "Cf") else repr(char)[1:-1] for char in text
    )


def _rounds(
    description: Description, tokens: int, passes: int, root: Path | None = None
) -> tuple[float | None, str | None]:
    """Round trips of all passes, composed from those of the operations as they were measured alone, which are those of
    `aero cost`; or None and the reason. root: where the costs are kept, by default as `folder_of_costs` has it, as who
    asks another host's server may be anywhere."""
    from aero.two_party.cost.cost_model import folder_of_costs, measured_operations, variant_of
    from aero.two_party.program.forward import operations

    total = 0.0
    try:
        root = folder_of_costs(Path()) if root is None else root
        measured = measured_operations(variant_of(description.protocol), root)
        for length in range(tokens, tokens + passes):
            counts = operations(description.parsed, description.model_config, description.program, length)
            total += sum(count * measured.rounds(one.name, one.shape) for one, count in counts.items())
    except Exception as error:
        # The answer is there and paid for: nothing that a file of measurements holds may keep it back.
        return None, one_line(error)
    return total, None


def _published(path: Path, tokenizer: str | None, program: str, settings: Settings) -> tuple[Description, Any, str]:
    """What the server says of the checkpoint at `path`, the checkpoint's tokenizer, and the hash of its weights, which
    the server keeps to itself."""
    from aero import checkpoint
    from aero.two_party.program.fixed_point import fitting
    from aero.two_party.program.weights import within_budget
    from aero.two_party.serving.answer import weights_sha256
    from aero.two_party.serving.handshake import Description

    *_, header = checkpoint.describe(path)
    found = _load(tokenizer if tokenizer is not None else tokenizer_beside(path, header.get("run")))
    check_tokenizer(found.sha256, header, path)
    model = checkpoint.load(path)
    weights = weights_sha256(model)
    program = fitting(model, within_budget(model, program, fraction_bits=settings.fraction_bits), settings)
    description = Description.of(model.architecture, model.config, program, settings, found.sha256)
    _check_vocabulary(found, description)
    return description, found, weights


def check_tokenizer(sha256: str, header: Mapping[str, str], path: Path) -> None:
    """UserError if the checkpoint at `path` names another tokenizer in its `header`: one of as many entries would do,
    and answer in other words. Checkpoints of earlier versions name none.
    """
    if header.get("tokenizer_sha256", sha256) != sha256:
        raise UserError(f"{path} was trained with another tokenizer than this one; give its own as --tokenizer")


def tokenizer_beside(path: Path, run: str | None) -> Path:
    """The tokenizer of the corpus that `run` was trained on, in the folder of runs that the checkpoint lies in."""
    from aero.config import load
    from aero.data.tokens import tokens_folder

    corpus = None
    if run is not None and Path("params.yaml").is_file() and run in (parameters := load()).runs:
        corpus = parameters.corpus_name(run)
    folders = [*Path(path).resolve().parents][2:3]  # runs / RUN / seed_1 / checkpoint
    for folder in folders:
        if (tokenizer := tokens_folder(corpus, folder) / "tokenizer.json").is_file():
            return tokenizer
    raise UserError(
        f"no tokenizer was found for {path} ({tokens_folder(corpus, 'runs')}); give its file as --tokenizer"
    )


def _load(path: Path | str) -> Any:
    from aero.data.tokenizer import load_tokenizer

    return load_tokenizer(path)


def _text_of(tokenizer: Any) -> str:
    with tempfile.TemporaryDirectory(prefix="aero-") as folder:
        tokenizer.save(Path(folder) / "tokenizer.json")
        return (Path(folder) / "tokenizer.json").read_text(encoding="utf-8")


def _load_text(text: str) -> Any:
    with tempfile.TemporaryDirectory(prefix="aero-") as folder:
        (Path(folder) / "tokenizer.json").write_text(text, encoding="utf-8")
        return _load(Path(folder) / "tokenizer.json")


def _check_vocabulary(tokenizer: Any, description: Description) -> None:
    vocabulary = description.model_config.vocabulary
    if tokenizer.vocabulary > vocabulary:
        raise UserError(
            f"the tokenizer has {tokenizer.vocabulary} entries, the model {vocabulary}: it is that of another model; "
            "give the model's own as --tokenizer"
        )


def _settings(chosen: argparse.Namespace) -> Settings:
    from aero.two_party.runtime.settings import Settings

    total = chosen.total if "total" in chosen else None  # who asks can leave at any time
    connect = min(90.0, chosen.timeout)
    return Settings(receive_timeout_s=chosen.timeout, connect_timeout_s=connect, total_timeout_s=total)


def _credentials(chosen: argparse.Namespace) -> Credentials | None:
    from aero.two_party.serving.tls import Credentials

    given = [chosen.certificate, chosen.key, chosen.ca]
    if not any(given):
        return None
    if not all(given):
        raise UserError("--certificate, --key and --ca belong together; give all three or none")
    return Credentials(*given)


def _say(line: str) -> None:
    print(line, flush=True)
