"""One decoder for every row of the papers.

Shapes: B sequences, T positions (the context), d width, H heads, d_k = d / H, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aero.architecture import Architecture
from aero.attention import shaped_attention, softmax_attention


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of a decoder; the defaults are the CodeParrot recipe (Q and K have biases, V, O, FFN none).

    ln_f: the final LayerNorm, which survives in the authors' "LayerNorm-free" models too.
    gelu: "exact" or "tanh" (GPT-2's approximation).
    init_std, embedding_std: standard deviations of the initial block matrices and of the embeddings.
    temperature_init, threshold_init: initial softmax temperature and `reg_threshold_weights`.
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
    threshold_init: float = 0.5

    def __post_init__(self) -> None:
        for name in ("vocabulary", "context", "layers", "heads", "width", "ffn_width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}: choose heads that divide it")
        if self.gelu not in ("exact", "tanh"):
            raise ValueError(f"gelu must be exact or tanh, got {self.gelu!r}")
        if self.temperature_init == 0:
            raise ValueError("temperature_init must not be 0: it divides the attention logits")


class Attention(nn.Module):
    """Multi-head causal self-attention (AERO Eq. 2, 3), optionally with a temperature t (H, T) (Eq. 11)."""

    def __init__(self, architecture: Architecture, config: ModelConfig) -> None:
        super().__init__()
        d = config.width
        self.heads = config.heads
        self.query = nn.Linear(d, d, bias=config.qk_bias)
        self.key = nn.Linear(d, d, bias=config.qk_bias)
        self.value = nn.Linear(d, d, bias=config.vo_bias)
        self.output = nn.Linear(d, d, bias=config.vo_bias)
        if architecture.temperature:
            self.temperature = nn.Parameter(torch.full((config.heads, config.context), config.temperature_init))
        else:
            self.register_parameter("temperature", None)

    def forward(self, x: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
        q, k, v = (split_heads(layer(x), self.heads) for layer in (self.query, self.key, self.value))
        t = None if self.temperature is None else self.temperature[:, : x.shape[1]]  # (H, T)
        attended, entropies = softmax_attention(q, k, v, t, entropy)
        return self.output(merge_heads(attended)), entropies


class ShapedAttention(nn.Module):
    """Attention of the He & Hofmann (2024) block: no output projection, values are the input itself.

    Only the first layer has a value matrix, W_V = r W + s I with W = 0, r = s = 1 at the start.
    """

    def __init__(self, config: ModelConfig, first: bool) -> None:
        super().__init__()
        d = config.width
        self.heads = config.heads
        self.query = nn.Linear(d, d, bias=config.qk_bias)
        self.key = nn.Linear(d, d, bias=config.qk_bias)
        self.shape_a, self.shape_b, self.shape_g = (nn.Parameter(torch.ones(config.heads)) for _ in range(3))
        if first:
            self.value_weight = nn.Parameter(torch.zeros(d, d))
            self.value_residual = nn.Parameter(torch.ones(()))
            self.value_skip = nn.Parameter(torch.ones(()))
        else:
            self.register_parameter("value_weight", None)

    def forward(self, x: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
        q, k = (split_heads(layer(x), self.heads) for layer in (self.query, self.key))
        values = x
        if self.value_weight is not None:
            values = self.value_residual * F.linear(x, self.value_weight) + self.value_skip * x
        v = split_heads(values, self.heads)
        attended, entropies = shaped_attention(q, k, v, self.shape_a, self.shape_b, self.shape_g, entropy)
        return merge_heads(attended), entropies


class FFN(nn.Module):
    """Feed-forward block (AERO Eq. 4): two matrices with GELU, ReLU or nothing between them."""

    def __init__(self, architecture: Architecture, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.ffn_width, bias=config.ffn_bias)
        self.down = nn.Linear(config.ffn_width, config.width, bias=config.ffn_bias)
        self.activation = architecture.ffn
        self.approximate = {"exact": "none", "tanh": "tanh"}[config.gelu]

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)  # (B, T, 4d)
        if self.activation == "gelu":
            x = F.gelu(x, approximate=self.approximate)
        elif self.activation == "relu":
            x = F.relu(x)
        return self.down(x)


class FusedFFN(nn.Module):
    """The linear feed-forward block as one (d, d) matrix (AERO §4.2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.fused = nn.Linear(config.width, config.width, bias=config.ffn_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.fused(x)


def _make_ffn(architecture: Architecture, config: ModelConfig, layer: int) -> nn.Module | None:
    """The feed-forward block of `layer`, None where it is pruned (the deepest go first)."""
    if layer >= architecture.ffn_layers(config.layers):
        return None
    return FusedFFN(config) if architecture.ffn == "fused" else FFN(architecture, config)


class PreLNBlock(nn.Module):
    """x_SA = x + MHA(LN_1(x)); x_out = beta x_SA + FFN(LN_2(x_SA)) / alpha (AERO Eq. 1 and 6)."""

    def __init__(self, architecture: Architecture, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.attention = Attention(architecture, config)
        self.ffn = _make_ffn(architecture, config, layer)
        normed = architecture.layer_norm
        self.ln_1 = nn.LayerNorm(config.width, eps=config.layer_norm_eps) if normed else nn.Identity()
        self.ln_2 = nn.LayerNorm(config.width, eps=config.layer_norm_eps) if normed else nn.Identity()
        scaled = architecture.scaled and self.ffn is not None
        self.alpha = nn.Parameter(torch.ones(())) if scaled else None
        self.beta = nn.Parameter(torch.ones(())) if scaled else None

    def forward(self, x: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
        attended, entropies = self.attention(self.ln_1(x), entropy)
        x = x + attended
        if self.ffn is None:
            return x, entropies
        y = self.ffn(self.ln_2(x))
        return (x + y if self.alpha is None else self.beta * x + y / self.alpha), entropies


class HeHofmannBlock(nn.Module):
    """x_out = b_ff FFN(n) + b_sa ShapedAttention(n), n = LN(x) in the first layer and x elsewhere.

    A pruned feed-forward block is the identity function here: dropping it would leave no path for x itself.
    """

    def __init__(self, architecture: Architecture, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.attention = ShapedAttention(config, first=layer == 0)
        self.ffn = _make_ffn(architecture, config, layer)
        self.ln_1 = nn.LayerNorm(config.width, eps=config.layer_norm_eps) if layer == 0 else nn.Identity()
        self.b_ff = nn.Parameter(torch.tensor(0.1))
        self.b_sa = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
        n = self.ln_1(x)
        attended, entropies = self.attention(n, entropy)
        y = n if self.ffn is None else self.ffn(n)
        return self.b_ff * y + self.b_sa * attended, entropies


class GPT(nn.Module):
    """Decoder-only language model with learned positions, in any architecture of `aero.architecture`."""

    def __init__(self, architecture: Architecture, config: ModelConfig) -> None:
        super().__init__()
        architecture.ffn_layers(config.layers)  # refuses to prune more feed-forward blocks than there are
        self.architecture, self.config = architecture, config
        block = HeHofmannBlock if architecture.block == "he_hofmann" else PreLNBlock
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.position_embedding = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(block(architecture, config, layer) for layer in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width, eps=config.layer_norm_eps) if config.ln_f else nn.Identity()
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False)
        if architecture.entropy_regularized:
            self.reg_threshold_weights = nn.Parameter(torch.full((config.layers, config.heads), config.threshold_init))
        else:
            self.register_parameter("reg_threshold_weights", None)
        self._initialise()

    def _initialise(self) -> None:
        """Every block matrix N(0, init_std), embeddings N(0, embedding_std), every bias 0.

        W_Q of the He & Hofmann block is 0, so that A = I at the start.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=self.config.init_std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.embedding_std)
        for module in self.modules():
            if isinstance(module, ShapedAttention):
                nn.init.zeros_(module.query.weight)

    def forward(self, ids: Tensor, entropy: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Logits (B, T, V) of `ids` (B, T); with `entropy`, also the row entropies (L, B, H, T) in nats."""
        states, entropies = self.hidden_states(ids, entropy)
        head = self.token_embedding.weight if self.lm_head is None else self.lm_head.weight
        logits = F.linear(self.ln_f(states[-1]), head)
        return (logits, torch.stack(entropies)) if entropy else logits

    def hidden_states(self, ids: Tensor, entropy: bool = False) -> tuple[list[Tensor], list[Tensor]]:
        """The embedding and every block's output, L + 1 tensors (B, T, d), and the row entropies if asked for.

        Raises ValueError for more tokens than the context.
        """
        if ids.shape[1] > self.config.context:
            raise ValueError(f"{ids.shape[1]} tokens exceed the model's context of {self.config.context}")
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.token_embedding(ids) + self.position_embedding(positions)  # (B, T, d)
        states, entropies = [x], []
        for block in self.blocks:
            x, row_entropies = block(x, entropy)
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
