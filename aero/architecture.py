"""Architectures as values, in the notation of the papers (AERO Table 1, §4.2, §4.3).

SM+LN+G                        the GPT-2 baseline
SM+R                           LayerNorm-free, ReLU feed-forward
SM+LeakyR                      leaky ReLU with a learnable slope a layer; LeakyR(global): one for all (§3.1)
SM                             Softmax-only: no LayerNorm, linear feed-forward
SM+WNorm(FFN)                  weight normalisation of the feed-forward matrices (Eq. 5); SNorm(…): spectral
SM+ScFFN                       linear feed-forward with learnable scaling (Eq. 6)
SM+ScFuFFNi_6                  its two matrices fused into one, the 6 deepest feed-forward blocks pruned
EReg(SM(t)+ScFuFFN)            learnable softmax temperature, trained with entropy regularisation
SOTA(SM+ScFFN)                 the same idea in the simplified block of He & Hofmann (2024), the papers' "SOTA" rows
SM+RMS+SwiGLU                  Llama's RMSNorm and gated feed-forward, for Hugging Face models (not in the papers)
Core(relu)+LN+G                another attention core instead of the softmax (`variance_sensitivity`; names as in
                               `aero.attention_kernels.CORES`)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from aero.errors import cut

FFN = Literal["gelu", "relu", "leaky_relu", "swiglu", "linear", "fused"]

ACTIVATIONS: dict[FFN, str] = {"gelu": "G", "relu": "R", "leaky_relu": "LeakyR", "swiglu": "SwiGLU"}
NORMED: dict[str, tuple[str, ...]] = {
    "FFN": ("FFN",),
    "QK": ("Q", "K"),
    "QK+FFN": ("Q", "K", "FFN"),
    "QKV+FFN": ("Q", "K", "V", "FFN"),
    "QKVO+FFN": ("Q", "K", "V", "O", "FFN"),
}
"""The linear layers of AERO Table 9 that are normalised together."""

_WRAPPER = re.compile(r"(EReg|SOTA)\((.*)\)")
_PLUS = re.compile(r"\+(?![^()]*\))")  # not inside parentheses
_FUSED = re.compile(r"ScFuFFN(?:i_([1-9][0-9]{0,5}))?")
_NORMED = re.compile(r"([WS])Norm\((.*)\)")
_CORE = re.compile(r"Core\(([a-z0-9_]+)\)")
_FORMS: dict[str, dict[str, object]] = {
    "LN": {"layer_norm": True},
    "RMS": {"layer_norm": True, "rms_norm": True},
    "G": {"ffn": "gelu"},
    "R": {"ffn": "relu"},
    "LeakyR": {"ffn": "leaky_relu", "slope": "layer"},
    "LeakyR(global)": {"ffn": "leaky_relu", "slope": "global"},
    "SwiGLU": {"ffn": "swiglu"},
    "ScFFN": {"ffn": "linear", "scaled": True},
}
_ALLOWED = (
    "SM, SM(t), LN, RMS, G, R, LeakyR, LeakyR(global), SwiGLU, ScFFN, ScFuFFN, ScFuFFNi_x, WNorm(…), SNorm(…),"
    " EReg(…), SOTA(…), Core(…)"
)


@dataclass(frozen=True)
class Architecture:
    """Which nonlinearities, norms and feed-forward form a decoder has; `parse` makes one from the papers' notation.

    block: "pre_ln" is the GPT-2 block (AERO Eq. 1), "he_hofmann" the skipless parallel block of He & Hofmann (2024).
    layer_norm: a norm before attention and before the FFN of every block. (A He & Hofmann row always has one, in its
        first block.) rms_norm: these norms, and the final one, are RMSNorm (Zhang & Sennrich 2019), not LayerNorm.
    ffn: the activation between the two feed-forward matrices; "linear" has none, "fused" is one (d, d) matrix,
        "swiglu" multiplies by the SiLU of a third matrix (Shazeer 2020).
    slope: whether a leaky ReLU has one learnable slope per layer or one for all (AERO Figure 4).
    scaled: learnable output scaling alpha and residual scaling beta of a linear feed-forward block (AERO Eq. 6).
    pruned: number of deepest feed-forward blocks replaced by the identity (`ScFuFFNi_x`).
    temperature: learnable softmax temperature t in R^(H x T) per layer (AERO Eq. 11).
    entropy_regularized: trained with the entropy regulariser; nothing changes at inference.
    weight_norm: "weight" (Salimans & Kingma) or "spectral" (Miyato et al.) normalisation of the weight matrices of the
        layers in `normed`, one of the values of `NORMED`; folded into plain weights at inference.
    core: how queries and keys become attention probabilities, a name in `aero.attention_kernels.CORES`; cores other
        than the softmax cannot be run privately.
    """

    layer_norm: bool = False
    rms_norm: bool = False
    ffn: FFN = "linear"
    scaled: bool = False
    pruned: int = 0
    temperature: bool = False
    entropy_regularized: bool = False
    block: Literal["pre_ln", "he_hofmann"] = "pre_ln"
    slope: Literal["layer", "global"] | None = None
    weight_norm: Literal["weight", "spectral"] | None = None
    normed: tuple[str, ...] = ()
    core: str = "softmax"

    def __post_init__(self) -> None:
        if self.core != "softmax" and (
            self.block == "he_hofmann" or self.temperature or self.entropy_regularized or self.weight_norm
        ):
            raise ValueError(
                f"Core({self.core}) replaces the softmax of a plain decoder: it cannot be combined with temperature,"
                " weight norm, EReg(…) or SOTA(…)"
            )
        if self.scaled and self.layer_norm:
            raise ValueError("ScFFN and LN exclude each other: scaling replaces LayerNorm (AERO §3.2)")
        if self.block == "he_hofmann" and (self.layer_norm or self.temperature or not self.scaled):
            raise ValueError("SOTA(…) takes SM+ScFFN, SM+ScFuFFN or SM+ScFuFFNi_x only")
        if self.block == "he_hofmann" and (missing := set(self.normed) - {"FFN"}):
            absent = "has no W_O and, but for its first layer, no W_V"
            reason = absent if missing & {"V", "O"} else "starts with W_Q = 0, which has no direction to normalise"
            raise ValueError(f"{self._norm_notation()}: the He & Hofmann block {reason}; normalise FFN alone")

    def __str__(self) -> str:
        softmax = "SM" if self.core == "softmax" else f"Core({self.core})"
        parts = ["SM(t)" if self.temperature else softmax]
        if self.layer_norm:
            parts.append("RMS" if self.rms_norm else "LN")
        if self.ffn in ACTIVATIONS:
            parts.append(ACTIVATIONS[self.ffn] + ("(global)" if self.slope == "global" else ""))
        elif self.scaled:
            parts.append(
                {"linear": "ScFFN", "fused": "ScFuFFN"}[self.ffn] + (f"i_{self.pruned}" if self.pruned else "")
            )
        if self.weight_norm:
            parts.append(self._norm_notation())
        text = "+".join(parts)
        if self.block == "he_hofmann":
            text = f"SOTA({text})"
        return f"EReg({text})" if self.entropy_regularized else text

    def _norm_notation(self) -> str:
        kind = {"weight": "WNorm", "spectral": "SNorm"}[self.weight_norm]
        return f"{kind}({next(text for text, layers in NORMED.items() if layers == self.normed)})"

    def at_inference(self) -> Architecture:
        """The architecture after training: without regulariser, with weight norms folded."""
        return replace(self, entropy_regularized=False, weight_norm=None, normed=())

    def ffn_layers(self, layers: int) -> int:
        """Number of layers that keep their feed-forward block, out of `layers`.

        ValueError if more are pruned than there are layers, or if all are pruned but should be normalised.
        """
        if self.pruned > layers:
            raise ValueError(f"{self}: cannot prune {self.pruned} FFNs of a model with {layers} layers")
        if "FFN" in self.normed and self.pruned == layers:
            raise ValueError(f"{self}: all {layers} FFNs are pruned, so there is none to normalise")
        return layers - self.pruned


def parse(text: str) -> Architecture:
    """The architecture of `text` in the papers' notation, the inverse of `str()`.

    Spaces are ignored. Raises ValueError naming the part that is wrong.
    """
    try:
        return Architecture(**_settings(re.sub(r"\s+", "", text)))  # type: ignore[arg-type]
    except ValueError as error:
        raise ValueError(f"architecture {cut(repr(text), 200)}: {error}") from None


def _settings(text: str) -> dict[str, object]:
    """The fields of `Architecture` that the notation sets."""
    settings: dict[str, object] = {}
    while match := _WRAPPER.fullmatch(text):
        key, value = {"EReg": ("entropy_regularized", True), "SOTA": ("block", "he_hofmann")}[match[1]]
        if key in settings:
            raise ValueError(f"{match[1]}(…) is given twice")
        settings[key] = value
        text = match[2]
    first, *parts = _PLUS.split(text)
    if match := _CORE.fullmatch(first):
        if match[1] == "softmax":
            raise ValueError("Core(softmax) is written SM")
        settings["core"] = match[1]
    elif first in ("SM", "SM(t)"):
        settings["temperature"] = first == "SM(t)"
    else:
        raise ValueError(f"must begin with SM, SM(t) or Core(…), not {cut(repr(first), 200)}; known: {_ALLOWED}")
    for part in parts:
        update = _part(part)
        if repeated := update.keys() & settings.keys():
            if {update.get("ffn"), settings.get("ffn")} & ACTIVATIONS.keys() and "scaled" in update | settings:
                raise ValueError(
                    "an FFN with an activation can be neither scaled nor fused, since its two matrices do not multiply"
                    " into one; leave out the activation or the Sc… part"
                )
            raise ValueError(f"{part} sets {', '.join(sorted(repeated))} a second time")
        settings |= update
    return settings


def _part(part: str) -> dict[str, object]:
    """The fields that a part after the first sets."""
    if part in _FORMS:
        return _FORMS[part]
    if match := _FUSED.fullmatch(part):
        return {"ffn": "fused", "scaled": True, "pruned": int(match[1] or 0)}
    if match := _NORMED.fullmatch(part):
        if match[2] not in NORMED:
            raise ValueError(f"{part} must name one of {', '.join(NORMED)} (AERO Table 9)")
        return {"weight_norm": {"W": "weight", "S": "spectral"}[match[1]], "normed": NORMED[match[2]]}
    raise ValueError(f"unknown part {cut(repr(part), 200)}; known parts: {_ALLOWED}")
