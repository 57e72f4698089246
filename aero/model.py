"""One decoder for every row of the papers.

Shapes: B sequences, T positions (the context), d width, H heads, d_k = d / H, V vocabulary.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from aero.architecture import ACTIVATIONS, Architecture
from aero.attention import (
    attend,
    causal_mask,
    clip_gain,
    clip_gain_gradient,
    core_named,
    normalise,
    rotary_table,
    rotate,
    row_entropy,
    shaped_attention,
    sigma_reparam,
    softmax_attention,
)


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of a decoder; the defaults are the CodeParrot recipe (Q and K have biases, V, O, FFN none).

    ln_f: the final LayerNorm, which survives in the authors' "LayerNorm-free" models too.
    gelu: "exact" or "tanh" (GPT-2's approximation).
    init_std, embedding_std: standard deviations of the initial block matrices and of the embeddings.
    temperature_init, threshold_init: initial softmax temperature and `reg_threshold_weights`.
    position: a learned embedding, or rotary embedding of the first `rotary_fraction` of each head's dimensions, in
        GPT-NeoX's layout (dimension k is rotated with k + r/2 of r), base 10,000.
    parallel_residual: attention and FFN read the same x (Pythia), see `PreLNBlock`.
    embedding_scale: token embeddings are multiplied by sqrt(d) (Languini).
    residual_init_scaling: the FFN's output matrix starts with init_std / sqrt(2 L) (Languini).
    slope_init: initial negative slope of a leaky ReLU. The papers do not say; 0.01 is `lrelu_neg_slope` in the
        configuration of the authors' relu-revival-normfree, which its learnable variant starts from too.
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
    position: Literal["learned", "rotary"] = "learned"
    rotary_fraction: float = 0.25
    parallel_residual: bool = False
    embedding_scale: bool = False
    residual_init_scaling: bool = False
    slope_init: float = 0.01

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
        if self.position not in ("learned", "rotary"):
            raise ValueError(f"position must be learned or rotary, got {self.position!r}")
        if self.position == "rotary" and (self.rotary_fraction > 1 or self.rotary_dims < 2 or self.rotary_dims % 2):
            raise ValueError(
                f"rotary_fraction {self.rotary_fraction:g} of a head's {self.width // self.heads} dimensions is"
                f" {self.rotary_dims}: rotation takes pairs, so it must be an even number from 2 to all of them"
            )

    @property
    def rotary_dims(self) -> int:
        """How many dimensions of every head are rotated, if positions are rotary."""
        return int(self.rotary_fraction * (self.width // self.heads))


class Attention(nn.Module):
    """Multi-head causal self-attention (AERO Eq. 2, 3), optionally with a temperature t (H, T) (Eq. 11).

    With another core than the softmax (`aero.attention.CORES`), logits are scaled by 1/sqrt(d_k) all the same; the
    gains gamma_q, gamma_k (d_k) of QK-LayerNorm are a layer's, shared by its heads.
    A state whose temperatures are of another context length is refused with a ValueError.
    """

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
            self.register_load_state_dict_pre_hook(_refuse_other_temperatures)
        else:
            self.register_parameter("temperature", None)
        table = rotary_table(config.context, config.rotary_dims) if config.position == "rotary" else None
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
        """P and logits Z / sqrt(d_k), each (B, H, T, T), of x (B, T, d); Z above the causal diagonal means nothing.

        Z is what the core gets: of normalised and scaled queries and keys for QK-LayerNorm, before phi for a kernel.
        """
        q, k, v = self._projected(x)
        if self.temperature is not None:
            q = q / self.temperature[:, : x.shape[1], None]
        probabilities = self._attend(q, k, v)[1]
        q, k = normalise(core_named(self.core), q, k, self._gains())
        return probabilities, q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, H, T, d_k) with their positions."""
        q, k, v = (split_heads(layer(x), self.heads) for layer in (self.query, self.key, self.value))
        if self.rotary is not None:
            q, k = rotate(q, self.rotary), rotate(k, self.rotary)
        return q, k, v

    def _gains(self) -> tuple[Tensor, Tensor] | None:
        return None if self.query_gain is None else (self.query_gain, self.key_gain)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        mask = causal_mask(q.shape[-2], q.device)
        return attend(core_named(self.core), q, k, v, self._gains(), 1 / math.sqrt(q.shape[-1]), mask)


def _refuse_other_temperatures(module: Attention, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Before loading: temperatures belong to query positions, so a table cannot be stretched or cut."""
    given, own = state.get(f"{prefix}temperature"), module.temperature
    if given is not None and given.shape != own.shape:
        raise ValueError(
            f"{prefix}temperature holds {' x '.join(map(str, given.shape))} values (heads x context), the model has"
            f" {' x '.join(map(str, own.shape))}; build the model with the context it was trained at"
        )


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
    """Feed-forward block (AERO Eq. 4): two matrices with GELU, ReLU, leaky ReLU or nothing between them."""

    def __init__(self, architecture: Architecture, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.ffn_width, bias=config.ffn_bias)
        self.down = nn.Linear(config.ffn_width, config.width, bias=config.ffn_bias)
        self.activation = architecture.ffn
        self.approximate = {"exact": "none", "tanh": "tanh"}[config.gelu]

    def forward(self, x: Tensor, slope: Tensor | None = None) -> Tensor:
        """x (B, T, d); slope () of a leaky ReLU, which may belong to all layers together."""
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


def _make_ffn(architecture: Architecture, config: ModelConfig, layer: int) -> nn.Module | None:
    """The feed-forward block of `layer`, None where it is pruned (the deepest go first)."""
    if layer >= architecture.ffn_layers(config.layers):
        return None
    return FusedFFN(config) if architecture.ffn == "fused" else FFN(architecture, config)


class PreLNBlock(nn.Module):
    """x_SA = x + MHA(LN_1(x)); x_out = beta x_SA + FFN(LN_2(x_SA)) / alpha (AERO Eq. 1 and 6).

    With `parallel_residual` both read x: x_out = beta x + FFN(LN_2(x)) / alpha + MHA(LN_1(x)). As in Eq. 6, beta scales
    what the residual connection around the FFN carries, which is x there; attention is added unscaled, as it is to
    x_SA. Temperature and regulariser act inside the attention and mean the same in both forms; a pruned FFN leaves
    x + MHA(LN_1(x)) in both.
    """

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

    def forward(self, x: Tensor, entropy: bool, slope: None = None) -> tuple[Tensor, Tensor | None]:
        n = self.ln_1(x)
        attended, entropies = self.attention(n, entropy)
        y = n if self.ffn is None else self.ffn(n)
        return self.b_ff * y + self.b_sa * attended, entropies


class GPT(nn.Module):
    """Decoder-only language model in any architecture of `aero.architecture`.

    Raises ValueError for an architecture that these sizes or switches cannot have.
    """

    def __init__(self, architecture: Architecture, config: ModelConfig) -> None:
        super().__init__()
        architecture.ffn_layers(config.layers)  # refuses to prune more feed-forward blocks than there are
        if architecture.block == "he_hofmann" and (config.position == "rotary" or config.parallel_residual):
            raise ValueError(
                f"{architecture} has learned positions and no residual connection: the He & Hofmann block takes neither"
                " position=rotary nor parallel_residual"
            )
        if core_named(architecture.core).gains is not None and config.position == "rotary":
            raise ValueError(
                f"{architecture}: QK-LayerNorm normalises queries and keys before they are rotated, which this model"
                " does not do; take position=learned"
            )
        self.architecture, self.config = architecture, config
        block = HeHofmannBlock if architecture.block == "he_hofmann" else PreLNBlock
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        learned = config.position == "learned"
        self.position_embedding = nn.Embedding(config.context, config.width) if learned else None
        self.blocks = nn.ModuleList(block(architecture, config, layer) for layer in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width, eps=config.layer_norm_eps) if config.ln_f else nn.Identity()
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False)
        if architecture.entropy_regularized:
            self.reg_threshold_weights = nn.Parameter(torch.full((config.layers, config.heads), config.threshold_init))
        else:
            self.register_parameter("reg_threshold_weights", None)
        if architecture.slope is not None:
            slopes = config.layers if architecture.slope == "layer" else 1
            self.leaky_slopes = nn.Parameter(torch.full((slopes,), config.slope_init))
        else:
            self.register_parameter("leaky_slopes", None)
        self._initialise()
        self._normalise_weights()

    def _initialise(self) -> None:
        """Every block matrix N(0, init_std), embeddings N(0, embedding_std), every bias 0.

        W_Q of the He & Hofmann block is 0, so that A = I at the start. `residual_init_scaling` concerns the matrix
        that an FFN writes its output with: the second one, or the fused one.
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

    def _normalise_weights(self) -> None:
        """Reparametrise the matrices that the architecture normalises (AERO Eq. 5), Q and K each on its own.

        weight: W = g v / |v|, a norm g for the weights of each output, starting at the plain initial W.
        spectral: W / sigma(W), sigma by one step of power iteration a forward pass in training mode. In evaluation mode
        nothing iterates: sigma = u^T W v with the vectors u, v that training left, which checkpoints hold too.
        A core with sigmaReparam does the like to Q, K and V, with a gain (`variance_sensitivity`, Appendix A).
        """
        if core_named(self.architecture.core).reparametrised:
            for block in self.blocks:
                for layer in (block.attention.query, block.attention.key, block.attention.value):
                    parametrize.register_parametrization(layer, "weight", _SigmaReparam(layer.weight))
                    layer.parametrizations.weight[0] = _OutsideAutocast(layer.parametrizations.weight[0])
        if self.architecture.weight_norm is None:
            return
        for block in self.blocks:
            attention = block.attention
            layers = [
                getattr(attention, name)
                for letter, name in (("Q", "query"), ("K", "key"), ("V", "value"), ("O", "output"))
                if letter in self.architecture.normed
            ]
            if "FFN" in self.architecture.normed and block.ffn is not None:
                layers += [layer for layer in block.ffn.children() if isinstance(layer, nn.Linear)]
            for layer in layers:
                if self.architecture.weight_norm == "weight":
                    parametrizations.weight_norm(layer)
                else:
                    parametrizations.spectral_norm(layer)
                    layer.parametrizations.weight[0] = _OutsideAutocast(layer.parametrizations.weight[0])

    def clip_gains(self) -> None:
        """Weight clipping of QK-LayerNorm's gains, after every step of the optimiser (Appendix D of
        `variance_sensitivity`); nothing for a core that does not ask for it."""
        if core_named(self.architecture.core).gains == "weight_clip":
            for block in self.blocks:
                clip_gain(block.attention.query_gain)
                clip_gain(block.attention.key_gain)

    def forward(self, ids: Tensor, entropy: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Logits (B, T, V) of `ids` (B, T); with `entropy`, also the row entropies (L, B, H, T) in nats."""
        states, entropies = self.hidden_states(ids, entropy)
        logits = self.logits(states[-1])
        return (logits, torch.stack(entropies)) if entropy else logits

    def logits(self, state: Tensor) -> Tensor:
        """Logits (B, T, V) of the last block's output (B, T, d)."""
        head = self.token_embedding.weight if self.lm_head is None else self.lm_head.weight
        return F.linear(self.ln_f(state), head)

    def hidden_states(self, ids: Tensor, entropy: bool = False) -> tuple[list[Tensor], list[Tensor]]:
        """The embedding and every block's output, L + 1 tensors (B, T, d), and the row entropies if asked for.

        Raises ValueError for more tokens than the context.
        """
        if ids.shape[1] > self.config.context:
            raise ValueError(f"{ids.shape[1]} tokens exceed the model's context of {self.config.context}")
        x = self.token_embedding(ids)  # (B, T, d)
        if self.config.embedding_scale:
            x = x * math.sqrt(self.config.width)
        if self.position_embedding is not None:
            x = x + self.position_embedding(torch.arange(ids.shape[1], device=ids.device))
        slopes: list[Tensor | None] = [None] * len(self.blocks)
        if self.leaky_slopes is not None:
            slopes = list(self.leaky_slopes.expand(len(self.blocks)))
        states, entropies = [x], []
        for block, slope in zip(self.blocks, slopes, strict=True):
            x, row_entropies = block(x, entropy, slope)
            states.append(x)
            if row_entropies is not None:
                entropies.append(row_entropies)
        return states, entropies


class _SigmaReparam(nn.Module):
    """gamma W / sigma(W) with a trained scalar gamma, 1 at first; one step of power iteration a pass in training."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))
        _, vector = sigma_reparam(weight.detach(), self.gain.detach(), torch.randn(weight.shape[1]), iterations=15)
        self.register_buffer("vector", vector)

    def forward(self, weight: Tensor) -> Tensor:
        weight, vector = sigma_reparam(weight, self.gain, self.vector, iterations=int(self.training))
        with torch.no_grad():
            self.vector.copy_(vector)
        return weight


class _OutsideAutocast(nn.Module):
    """A parametrisation computed in the weights' own precision: in half precision its sigma would be another one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):
            return self.inner(weight)


@torch.no_grad()
def fold_weight_norm(model: GPT) -> GPT:
    """`model` with its weight or spectral norms folded into plain weights: the same outputs, in evaluation mode.

    A copy; a model without such norms comes back as a plain copy.
    """
    source = copy.deepcopy(model).eval()  # in training mode, reading a spectral norm's weight would iterate on
    if model.architecture.weight_norm is None:
        return source
    state = {name: value for name, value in source.state_dict().items() if ".parametrizations." not in name}
    for name, module in source.named_modules():
        if parametrize.is_parametrized(module, "weight"):
            state[f"{name}.weight"] = module.weight
    with torch.random.fork_rng(devices=[]):  # the initial draws are overwritten and shall move no one else's
        folded = GPT(replace(model.architecture, weight_norm=None, normed=()), model.config)
    folded.load_state_dict(state)
    return folded.to(source.token_embedding.weight).eval()


@torch.no_grad()
def fuse_ffn(model: GPT) -> GPT:
    """`model` with every linear FFN as the one matrix W_in W_out it amounts to (AERO §4.2), in evaluation mode.

    Norms of its weights are folded away first. ValueError if there is an activation between the two matrices.
    """
    architecture = model.architecture
    if architecture.ffn in ACTIVATIONS:
        raise ValueError(
            f"{architecture}: {ACTIVATIONS[architecture.ffn]} stands between the two FFN matrices, so they do not"
            " multiply into one; only a linear FFN (ScFFN) can be fused"
        )
    fused = fold_weight_norm(model)
    fused.architecture = replace(fused.architecture, ffn="fused")
    for block in fused.blocks:
        if isinstance(block.ffn, FFN):
            up, down = block.ffn.up, block.ffn.down
            block.ffn = FusedFFN(model.config).to(up.weight)
            block.ffn.fused.weight.copy_(down.weight.double() @ up.weight.double())
            if down.bias is not None:
                block.ffn.fused.bias.copy_(down.weight.double() @ up.bias.double() + down.bias.double())
    return fused.eval()


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, d) -> (B, H, T, d_k)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, d_k) -> (B, T, d)."""
    return x.transpose(1, 2).flatten(-2)
