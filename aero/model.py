"""One decoder for every row of the papers and for Llama: GPT-2, Pythia, Languini and the He & Hofmann block.

Shapes: B sequences, T positions (at most the context), d width, L layers, H heads, d_k = d / H, V vocabulary,
G heads of keys and values, r rotated dimensions of a head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aero.architecture import Architecture
from aero.attention import rotary_table, rotate, shaped_attention, softmax_attention
from aero.attention_kernels import (
    attend,
    causal_mask,
    clip_gain,
    clip_gain_gradient,
    core_named,
    normalise,
    row_entropy,
)
from aero.weight_transforms import parametrize_weights


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of a decoder. The defaults are the CodeParrot recipe: Q and K have biases; V, O, FFN do not.

    ln_f: whether there is a final LayerNorm. The authors' "LayerNorm-free" models keep it.
    gelu: "exact" or "tanh" (GPT-2's approximation).
    init_std, embedding_std: standard deviations of the initial block matrices and of the embeddings.
    temperature_init, threshold_init: initial softmax temperature and initial `reg_threshold_weights`.
    log_temperature: learn log t in place of the temperature t, which then stays positive.
    position: "learned" embedding, or "rotary" embedding of the first `rotary_fraction` of each head's dimensions
        (GPT-NeoX's layout: dimension k is rotated with k + r/2) with angles of base `rotary_base`.
    kv_heads: heads of keys and values, each read by H / G heads of queries; 0: as many as heads.
    parallel_residual: attention and FFN read the same x (Pythia), see `PreLNBlock`.
    embedding_scale: multiply token embeddings by sqrt(d) (Languini).
    residual_init_scaling: initialise the FFN's output matrix with init_std / sqrt(2 L) (Languini).
    slope_init: initial negative slope of a leaky ReLU. The papers do not state it; 0.01 is `lrelu_neg_slope` in the
        authors' relu-revival-normfree.
    """

    vocabulary: int
    context: int
    layers: int
    heads: int
    width: int
    ffn_width: int
    qk_bias: bool = True
    vo_bias: bool = False
    ffn_bias: bool = False
    ln_f: bool = True
    tied: bool = True
    gelu: str = "tanh"
    layer_norm_eps: float = 1e-5
    init_std: float = 0.02
    embedding_std: float = 0.02
    temperature_init: float = 1e-2
    log_temperature: bool = False
    threshold_init: float = 0.5
    position: Literal["learned", "rotary"] = "learned"
    rotary_fraction: float = 0.25
    parallel_residual: bool = False
    embedding_scale: bool = False
    residual_init_scaling: bool = False
    slope_init: float = 0.01
    kv_heads: int = 0
    rotary_base: float = 10_000.0

    def __post_init__(self) -> None:
        for name in ("vocabulary", "context", "layers", "heads", "width", "ffn_width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}: choose heads that divide it")
        if self.kv_heads < 0 or (self.kv_heads and self.heads % self.kv_heads):
            raise ValueError(f"kv_heads {self.kv_heads} must divide heads {self.heads}, or be 0: as many as heads")
        if self.gelu not in ("exact", "tanh"):
            raise ValueError(f"gelu must be exact or tanh, got {self.gelu!r}")
        if self.temperature_init == 0:
            raise ValueError("temperature_init must not be 0: it divides the attention logits")
        if self.log_temperature and self.temperature_init < 0:
            raise ValueError(f"log_temperature needs a temperature_init above 0, got {self.temperature_init:g}")
        if self.position not in ("learned", "rotary"):
            raise ValueError(f"position must be learned or rotary, got {self.position!r}")
        if self.position == "rotary" and (self.rotary_fraction > 1 or self.rotary_dims < 2 or self.rotary_dims % 2):
            raise ValueError(
                f"rotary_fraction {self.rotary_fraction:g} of a head's {self.width // self.heads} dimensions is"
                f" {self.rotary_dims}: rotation takes pairs, so it must be an even number from 2 to all of them"
            )

    @property
    def rotary_dims(self) -> int:
        """r, the number of dimensions of every head that rotary positions rotate."""
        return int(self.rotary_fraction * (self.width // self.heads))

    @property
    def kv_width(self) -> int:
        """G d_k, the width of all keys or all values of a token."""
        return self.width // self.heads * (self.kv_heads or self.heads)


class Attention(nn.Module):
    """Multi-head causal self-attention (AERO Eq. 2, 3), optionally with a temperature t (H, T) (Eq. 11).

    Every core (`aero.attention_kernels.CORES`) gets logits scaled by 1/sqrt(d_k). The gains gamma_q, gamma_k (d_k) of
    QK-LayerNorm are shared by the heads of a layer.
    """

    def __init__(self, architecture: Architecture, config: ModelConfig) -> None:
        super().__init__()
        d, kv_width = config.width, config.kv_width
        self.heads, self.kv_heads = config.heads, config.kv_heads or config.heads
        self.query = nn.Linear(d, d, bias=config.qk_bias)
        self.key = nn.Linear(d, kv_width, bias=config.qk_bias)
        self.value = nn.Linear(d, kv_width, bias=config.vo_bias)
        self.output = nn.Linear(d, d, bias=config.vo_bias)
        start = torch.full((config.heads, config.context), config.temperature_init)
        self.temperature = nn.Parameter(start) if architecture.temperature else None
        rotary = config.position == "rotary"
        table = rotary_table(config.context, config.rotary_dims, config.rotary_base) if rotary else None
        self.register_buffer("rotary", table, persistent=False)  # (2, T, r/2)
        self.core = architecture.core
        gains = core_named(self.core).gains
        for name in ("query_gain", "key_gain"):
            gain = None if gains is None else nn.Parameter(torch.ones(d // config.heads), gains != "fixed")
            if gains == "gradient_clip":
                gain.register_hook(clip_gain_gradient)
            self.register_parameter(name, gain)

    def forward(self, x: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
        q, k, v = self._projected(x)
        if self.core == "softmax":
            t = None if self.temperature is None else self.temperature[:, : x.shape[1]]  # (H, T)
            attended, entropies = softmax_attention(q, k, v, t, entropy)
            return self.output(merge_heads(attended)), entropies
        attended, probabilities = self._attend(q, k, v)
        return self.output(merge_heads(attended)), row_entropy(probabilities) if entropy else None

    def matrices(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Attention probabilities P and logits Z / sqrt(d_k), each (B, H, T, T), of x (B, T, d).

        Z is not masked. It is the input of the core: after QK-LayerNorm, before the feature map phi of a kernel.
        """
        q, k, v = self._projected(x)
        if self.temperature is not None:
            q = q / self.temperature[:, : x.shape[1], None]  # (B, H, T, d_k)
        probabilities = self._attend(q, k, v)[1]
        q, k = normalise(core_named(self.core), q, k, self._gains())
        return probabilities, q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (B, H, T, d_k); queries and keys with rotary positions, if any."""
        q = split_heads(self.query(x), self.heads)
        k, v = (split_heads(layer(x), self.kv_heads) for layer in (self.key, self.value))  # (B, G, T, d_k)
        if self.rotary is not None:
            q, k = rotate(q, self.rotary), rotate(k, self.rotary)
        if (times := self.heads // self.kv_heads) > 1:
            k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        return q, k, v

    def _gains(self) -> tuple[Tensor, Tensor] | None:
        return None if self.query_gain is None else (self.query_gain, self.key_gain)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        mask = causal_mask(q.shape[-2], q.device)
        return attend(core_named(self.core), q, k, v, self._gains(), 1 / math.sqrt(q.shape[-1]), mask)


class ShapedAttention(nn.Module):
    """Attention of the He & Hofmann (2024) block: no output projection, and the values are the input itself.

    Only the first layer has a value matrix: W_V = r W + s I, initially with W = 0 and r = s = 1.
    """

    def __init__(self, config: ModelConfig, first: bool) -> None:
        super().__init__()
        d = config.width
        self.heads = config.heads
        self.query = nn.Linear(d, d, bias=config.qk_bias)
        self.key = nn.Linear(d, d, bias=config.qk_bias)
        self.shape_a, self.shape_b, self.shape_g = (nn.Parameter(torch.ones(config.heads)) for _ in range(3))
        self.value_weight = nn.Parameter(torch.zeros(d, d)) if first else None
        self.value_residual = nn.Parameter(torch.ones(())) if first else None
        self.value_skip = nn.Parameter(torch.ones(())) if first else None

    def forward(self, x: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
        q, k = (split_heads(layer(x), self.heads) for layer in (self.query, self.key))
        values = x
        if self.value_weight is not None:
            values = self.value_residual * F.linear(x, self.value_weight) + self.value_skip * x  # (B, T, d)
        v = split_heads(values, self.heads)
        attended, entropies = shaped_attention(q, k, v, self.shape_a, self.shape_b, self.shape_g, entropy)
        return merge_heads(attended), entropies


class FFN(nn.Module):
    """Feed-forward block (AERO Eq. 4): two matrices with GELU, ReLU, leaky ReLU or nothing between them; or SwiGLU."""

    def __init__(self, architecture: Architecture, config: ModelConfig) -> None:
        super().__init__()
        d, hidden, bias = config.width, config.ffn_width, config.ffn_bias
        self.up, self.down = nn.Linear(d, hidden, bias), nn.Linear(hidden, d, bias)
        self.gate = nn.Linear(d, hidden, bias) if architecture.ffn == "swiglu" else None
        self.activation = architecture.ffn
        self.approximate = {"exact": "none", "tanh": "tanh"}[config.gelu]

    def forward(self, x: Tensor, slope: Tensor | None = None) -> Tensor:
        """x: (B, T, d). slope: (), the negative slope of a leaky ReLU."""
        if self.gate is not None:
            return self.down(F.silu(self.gate(x)) * self.up(x))
        x = self.up(x)  # (B, T, 4d)
        if self.activation == "gelu":
            x = F.gelu(x, approximate=self.approximate)
        elif self.activation == "relu":
            x = F.relu(x)
        elif self.activation == "leaky_relu":
            x = F.prelu(x, slope)
        return self.down(x)


class FusedFFN(nn.Module):
    """The linear feed-forward block as one (d, d) matrix (AERO §4.2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.fused = nn.Linear(config.width, config.width, bias=config.ffn_bias)

    def forward(self, x: Tensor, slope: None = None) -> Tensor:
        return self.fused(x)


def _make_norm(architecture: Architecture, config: ModelConfig) -> nn.Module:
    return (nn.RMSNorm if architecture.rms_norm else nn.LayerNorm)(config.width, eps=config.layer_norm_eps)


def _make_ffn(architecture: Architecture, config: ModelConfig, layer: int) -> nn.Module | None:
    """The feed-forward block of `layer`, or None where it is pruned (the deepest are pruned first)."""
    if layer >= architecture.ffn_layers(config.layers):
        return None
    return FusedFFN(config) if architecture.ffn == "fused" else FFN(architecture, config)


class PreLNBlock(nn.Module):
    """x_SA = x + MHA(LN_1(x)); x_out = beta x_SA + FFN(LN_2(x_SA)) / alpha (AERO Eq. 1 and 6).

    With `parallel_residual` both read x: x_out = beta x + FFN(LN_2(x)) / alpha + MHA(LN_1(x)). As in Eq. 6, beta scales
    the residual connection around the FFN (here x) and attention is added unscaled. With a pruned FFN both forms are
    x + MHA(LN_1(x)).
    """

    def __init__(self, architecture: Architecture, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.attention, self.ffn = Attention(architecture, config), _make_ffn(architecture, config, layer)
        norms = (_make_norm(architecture, config) if architecture.layer_norm else nn.Identity() for _ in range(2))
        self.ln_1, self.ln_2 = norms
        scaled = architecture.scaled and self.ffn is not None
        self.alpha = nn.Parameter(torch.ones(())) if scaled else None
        self.beta = nn.Parameter(torch.ones(())) if scaled else None
        self.parallel = config.parallel_residual

    def forward(self, x: Tensor, entropy: bool, slope: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        attended, entropies = self.attention(self.ln_1(x), entropy)
        if self.parallel and self.ffn is not None:
            return self._with_ffn(x, slope) + attended, entropies
        x = x + attended
        return (x if self.ffn is None else self._with_ffn(x, slope)), entropies

    def _with_ffn(self, x: Tensor, slope: Tensor | None) -> Tensor:
        y = self.ffn(self.ln_2(x), slope)
        return x + y if self.alpha is None else self.beta * x + y / self.alpha


class HeHofmannBlock(nn.Module):
    """x_out = b_ff FFN(n) + b_sa ShapedAttention(n), with n = LN(x) in the first layer and n = x elsewhere.

    There is no residual connection, so a pruned FFN is the identity here.
    """

    def __init__(self, architecture: Architecture, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.attention = ShapedAttention(config, first=layer == 0)
        self.ffn = _make_ffn(architecture, config, layer)
        self.ln_1 = _make_norm(architecture, config) if layer == 0 else nn.Identity()
        self.b_ff = nn.Parameter(torch.tensor(0.1))
        self.b_sa = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor, entropy: bool, slope: None = None) -> tuple[Tensor, Tensor | None]:
        n = self.ln_1(x)
        attended, entropies = self.attention(n, entropy)
        y = n if self.ffn is None else self.ffn(n)
        return self.b_ff * y + self.b_sa * attended, entropies


class GPT(nn.Module):
    """Decoder-only language model of any architecture in `aero.architecture`.

    Raises ValueError if the architecture does not fit the sizes or switches of the configuration.
    """

    def __init__(self, architecture: Architecture, config: ModelConfig) -> None:
        super().__init__()
        architecture.ffn_layers(config.layers)  # ValueError if more FFNs are pruned than there are layers
        switches = config.position == "rotary" or config.parallel_residual or config.kv_heads
        if architecture.block == "he_hofmann" and switches:
            raise ValueError(
                f"{architecture}: the He & Hofmann block has learned positions and no residual connection, so none of"
                " position=rotary, parallel_residual and kv_heads applies"
            )
        if core_named(architecture.core).gains is not None and config.position == "rotary":
            raise ValueError(
                f"{architecture}: QK-LayerNorm with rotary positions is not implemented; use position=learned"
            )
        self.architecture, self.config = architecture, config
        block = HeHofmannBlock if architecture.block == "he_hofmann" else PreLNBlock
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        learned = config.position == "learned"
        self.position_embedding = nn.Embedding(config.context, config.width) if learned else None
        self.blocks = nn.ModuleList(block(architecture, config, layer) for layer in range(config.layers))
        self.ln_f = _make_norm(architecture, config) if config.ln_f else nn.Identity()
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False)
        thresholds = torch.full((config.layers, config.heads), config.threshold_init)
        self.reg_threshold_weights = nn.Parameter(thresholds) if architecture.entropy_regularized else None
        slopes = torch.full((config.layers if architecture.slope == "layer" else 1,), config.slope_init)
        self.leaky_slopes = nn.Parameter(slopes) if architecture.slope is not None else None
        self._initialise()
        parametrize_weights(self)

    def _initialise(self) -> None:
        """Every block matrix N(0, init_std), embeddings N(0, embedding_std), every bias 0.

        `residual_init_scaling` applies to the output matrix of an FFN: the second one, or the fused one.
        W_Q of the He & Hofmann block is 0, so that its attention starts as the identity, A = I.
        """
        writes_output = ("ffn.down", "ffn.fused") if self.config.residual_init_scaling else ()
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                scale = 1 / math.sqrt(2 * self.config.layers) if name.endswith(writes_output) else 1.0
                nn.init.normal_(module.weight, std=scale * self.config.init_std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.embedding_std)
        for module in self.modules():
            if isinstance(module, ShapedAttention):
                nn.init.zeros_(module.query.weight)

    def clip_gains(self) -> None:
        """Clip the gains of a QK-LayerNorm core with weight clipping (`variance_sensitivity`, Appendix D), else do
        nothing. Call it after every step of the optimiser."""
        if core_named(self.architecture.core).gains == "weight_clip":
            for block in self.blocks:
                clip_gain(block.attention.query_gain)
                clip_gain(block.attention.key_gain)

    def forward(self, ids: Tensor, entropy: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Logits (B, T, V) of `ids` (B, T); with `entropy`, also the row entropies (L, B, H, T) in nats."""
        states, entropies = self.hidden_states(ids, entropy)
        logits = self.logits(states[-1])  # (B, T, V)
        return (logits, torch.stack(entropies)) if entropy else logits

    def logits(self, state: Tensor) -> Tensor:
        """Logits (B, T, V) from the last block's output (B, T, d)."""
        head = self.token_embedding.weight if self.lm_head is None else self.lm_head.weight
        return F.linear(self.ln_f(state), head)

    def hidden_states(self, ids: Tensor, entropy: bool = False) -> tuple[list[Tensor], list[Tensor]]:
        """The embedding and every block's output, L + 1 tensors (B, T, d); with `entropy`, also L tensors (B, H, T).

        Raises ValueError for more tokens than the context.
        """
        if ids.shape[1] > self.config.context:
            raise ValueError(f"{ids.shape[1]} tokens exceed the model's context of {self.config.context}")
        x = self.token_embedding(ids)  # (B, T, d)
        if self.config.embedding_scale:
            x = x * math.sqrt(self.config.width)
        if self.position_embedding is not None:
            x = x + self.position_embedding(torch.arange(ids.shape[1], device=ids.device))  # (B, T, d)
        count = len(self.blocks)
        slopes = [None] * count if self.leaky_slopes is None else self.leaky_slopes.expand(count)
        states, entropies = [x], []
        for block, slope in zip(self.blocks, slopes, strict=True):
            x, row_entropies = block(x, entropy, slope)
            states.append(x)
            if row_entropies is not None:
                entropies.append(row_entropies)
        return states, entropies


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, d) -> (B, H, T, d_k)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, d_k) -> (B, T, d)."""
    return x.transpose(1, 2).flatten(-2)
