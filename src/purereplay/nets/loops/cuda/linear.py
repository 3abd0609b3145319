"""Linear layers of K networks, forward and backward, over the kernels: the perceptron's backbone and every head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from purereplay.nets.loops.cuda.kernels import matmul_kernel, update_linear_kernel
from purereplay.nets.loops.cuda.parameters import BETA1, BETA2, EPSILON, Parameters
from purereplay.nets.loops.cuda.shapes import or_else, precision_of
from purereplay.nets.networks import MLP, State


class Tile(NamedTuple):
    """How a product is cut: a program's block, and what Triton makes of it."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def power_of_two(n: int) -> int:
    return max(16, 1 << (n - 1).bit_length())


def product_tile(n_networks: int, n_rows: int, n_columns: int) -> Tile:
    """Large tiles where there is work for all multiprocessors, small ones otherwise. The sums do not depend on it."""
    if n_networks * -(-n_rows // 128) * -(-n_columns // 128) >= 100:
        return Tile(128, 128, 64, 8, 3)
    return Tile(64, 64, 64, 4, 4)


UPDATE_TILE = Tile(64, 64, 128, 4, 3)  # rows × columns: block of the weight; depth: samples summed at a time


def matmul(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    relu: bool = False,
    gate: Tensor | None = None,
    norm: Tensor | None = None,
) -> None:
    """out[k] = f(a[k] @ b[k] + bias[k]); see `matmul_kernel`. `gate` has out's layout; b may be transposed."""
    k, n_rows, depth = a.shape
    n_columns = b.shape[2]
    tile = product_tile(k, n_rows, n_columns)
    if norm is not None:
        tile = tile._replace(rows=64, columns=power_of_two(n_columns), warps=8 if n_columns > 128 else 4, stages=3)
    grid = (-(-n_rows // tile.rows) * -(-n_columns // tile.columns), k)
    matmul_kernel[grid](
        a,
        b,
        or_else(bias, out),
        or_else(gate, out),
        out,
        or_else(norm, out),
        n_rows,
        n_columns,
        depth,
        *a.stride(),
        *b.stride(),
        bias.stride(0) if bias is not None else 0,
        out.stride(0),
        out.stride(1),
        HAS_BIAS=bias is not None,
        RELU=relu,
        HAS_GATE=gate is not None,
        NORMALISE=norm is not None,
        PRECISION=precision_of(a),
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def aligned_rows(n_rows: int, width: int, like: Tensor) -> Tensor:
    """(K, n_rows, width) for the networks of `like`; rows begin at multiples of 16 numbers, to be read wide."""
    rows = torch.zeros(like.shape[0], n_rows, -(-width // 16) * 16, device=like.device, dtype=like.dtype)
    return rows[..., :width]


class Beside:
    """Launches in this context run beside what follows it, after all that came before; `join` waits for them."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
            self.before = torch.cuda.current_stream()
            torch.cuda.set_stream(self.stream)

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            torch.cuda.set_stream(self.before)

    def join(self) -> None:
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)


class Linear:
    """One layer of K networks with its output and the gradient of its input."""

    def __init__(
        self,
        parameters: Parameters,
        name: str,
        n_rows: int,
        *,
        wants_input_gradient: bool = True,
        clip: float | None = None,
    ) -> None:
        self.parameters, self.name, self.clip = parameters, name, clip
        self.n_in, self.n_out = parameters.shapes[f"{name}.weight"]
        half = parameters.half
        self.weight, self.bias = (parameters.view(half, f"{name}.{part}") for part in ("weight", "bias"))
        self.out = aligned_rows(n_rows, self.n_out, half)
        if wants_input_gradient:
            self.gradient = aligned_rows(n_rows, self.n_in, half)

    def forward(self, x: Tensor, *, relu: bool) -> Tensor:
        matmul(x, self.weight, self.out, bias=self.bias, relu=relu)
        return self.out

    def backward(self, d: Tensor, *, gate: Tensor | None) -> Tensor:
        """d with respect to the output -> with respect to the input, zero where `gate` is."""
        matmul(d, self.weight.transpose(1, 2), self.gradient, gate=gate)
        return self.gradient

    def update(self, x: Tensor, d: Tensor, rates: Tensor) -> None:
        """Adam's step, for input x and gradient d of the output; after `backward`, which reads the same weights."""
        p = self.parameters
        k, n_rows = x.shape[:2]
        tile = UPDATE_TILE
        grid = ((-(-self.n_in // tile.rows) + 1) * -(-self.n_out // tile.columns), k)
        update_linear_kernel[grid](
            x,
            d,
            p.weight,
            p.mean,
            p.square,
            p.half,
            rates,
            n_rows,
            self.n_in,
            self.n_out,
            x.stride(0),
            x.stride(1),
            d.stride(0),
            d.stride(1),
            p.weight.stride(0),
            p.offsets[f"{self.name}.weight"],
            p.offsets[f"{self.name}.bias"],
            PRECISION=precision_of(x),
            CLIP=self.clip or 0.0,
            IN=tile.rows,
            OUT=tile.columns,
            ROWS=tile.depth,
            BETA1=BETA1,
            BETA2=BETA2,
            EPSILON=EPSILON,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )


class CudaMLP:
    """The perceptron's hidden layers of K networks; see `networks.MLP`."""

    gates_features = True  # its features come out of a ReLU
    pixel = 0  # of the views: channel after channel

    def __init__(
        self, backbone: MLP, n_rows: int, parameters: Parameters, prefix: str, clip: float | None = None
    ) -> None:
        names = [f"{prefix}layer{i + 1}" for i in range(len(backbone.hidden))]
        self.layers = [Linear(parameters, n, n_rows, wants_input_gradient=n != names[0], clip=clip) for n in names]
        self.parameters, self.prefix = parameters, prefix

    @staticmethod
    def shapes(backbone: MLP) -> dict[str, tuple[int, ...]]:
        sizes = (backbone.n_inputs, *backbone.hidden)
        return linear_shapes([(f"layer{i + 1}", sizes[i], sizes[i + 1]) for i in range(len(backbone.hidden))])

    def load(self, state: State, mean: State, square: State) -> None:
        load_as_they_are(self.parameters, self.prefix, state, mean, square)

    def read(self) -> tuple[State, State, State]:
        return read_as_they_are(self.parameters, self.prefix)

    def statistics(self) -> list[Tensor]:
        """What a step changes beside the parameters."""
        return []

    def forward(self, x: Tensor) -> Tensor:
        """Views (K, n, n_inputs) -> features (K, n, n_features), each in a place of its own."""
        self.x = x
        for layer in self.layers:
            x = layer.forward(x, relu=True)
        return x

    def backward(self, d: Tensor, rates: Tensor, beside: Beside) -> None:
        """Adam's step for every layer, from the gradient of the features."""
        for i in reversed(range(len(self.layers))):
            x = self.layers[i - 1].out if i else self.x
            next_d = self.layers[i].backward(d, gate=x) if i else d
            with beside:
                self.layers[i].update(x, d, rates)
            d = next_d


def linear_shapes(layers: Sequence[tuple[str, int, int]]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, n_in, n_out in layers:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (n_in, n_out), (n_out,)
    return shapes


def load_as_they_are(parameters: Parameters, prefix: str, state: State, mean: State, square: State) -> None:
    """Stacked tensors whose layout is the kernels' own into the flat ones."""
    for flat, given in ((parameters.weight, state), (parameters.mean, mean), (parameters.square, square)):
        for name in (n for n in parameters.shapes if n.startswith(prefix)):
            ours = parameters.view(flat, name)
            ours.copy_(given[name.removeprefix(prefix)])


def read_as_they_are(parameters: Parameters, prefix: str) -> tuple[State, State, State]:
    names = [n for n in parameters.shapes if n.startswith(prefix)]
    flats = (parameters.weight, parameters.mean, parameters.square)
    weight, mean, square = ({n.removeprefix(prefix): parameters.view(flat, n).clone() for n in names} for flat in flats)
    return weight, mean, square
