"""Linear layers of K networks, forward and backward: the layers of the MLP and of all heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from purereplay.nets.loops.cuda.kernels import matmul_kernel, update_linear_kernel
from purereplay.nets.loops.cuda.parameters import BETA1, BETA2, EPSILON, Parameters
from purereplay.nets.loops.cuda.shapes import or_placeholder, precision_of
from purereplay.nets.networks import MLP, State


class Tile(NamedTuple):
    """Block of a product per program, and its compilation options."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def power_of_two(n: int) -> int:
    """The next power of two, at least 16."""
    return max(16, 1 << (n - 1).bit_length())


def product_tile(n_networks: int, n_rows: int, n_columns: int) -> Tile:
    """Large tiles if they keep all multiprocessors busy, else small ones; results do not depend on the choice."""
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
    add: bool = False,
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
        or_placeholder(bias, out),
        or_placeholder(gate, out),
        out,
        or_placeholder(norm, out),
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
        ADD=add,
        PRECISION=precision_of(a),
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def aligned_rows(n_rows: int, width: int, like: Tensor) -> Tensor:
    """Allocate (K, n_rows, width) for the networks of `like`; rows start at multiples of 16, for wide loads."""
    rows = torch.zeros(like.shape[0], n_rows, -(-width // 16) * 16, device=like.device, dtype=like.dtype)
    return rows[..., :width]


class SideStream:
    """Second CUDA stream; launches within the context run after earlier ones and parallel to later ones."""

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
        """Make the current stream wait for the second one."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)


class Linear:
    """One layer of K networks, with buffers for its output and the gradient of its input."""

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

    def backward(self, d: Tensor, *, gate: Tensor | None, add_to: Tensor | None = None) -> Tensor:
        """Gradient of the output -> gradient of the input, 0 where `gate` is 0; added in place to `add_to` if given."""
        out = self.gradient if add_to is None else add_to
        matmul(d, self.weight.transpose(1, 2), out, gate=gate, add=add_to is not None)
        return out

    def update(self, x: Tensor, d: Tensor, adam_scales: Tensor) -> None:
        """Take Adam's step for input x and gradient d of the output; after `backward`, which reads the weights."""
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
            adam_scales,
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
    """Hidden layers of K MLPs; see `networks.MLP`."""

    gates_features = True  # features are outputs of a ReLU
    pixel = 0  # layout of the views: channel after channel

    def __init__(
        self, backbone: MLP, n_rows: int, parameters: Parameters, prefix: str, clip: float | None = None
    ) -> None:
        names = [f"{prefix}layer{i + 1}" for i in range(len(backbone.hidden))]
        self.layers = [Linear(parameters, n, n_rows, wants_input_gradient=n != names[0], clip=clip) for n in names]
        self.parameters, self.prefix = parameters, prefix
        self.whole: State = {}  # as of `CudaResNet`: every weight is trained

    @staticmethod
    def shapes(backbone: MLP) -> dict[str, tuple[int, ...]]:
        sizes = (backbone.n_inputs, *backbone.hidden)
        return linear_shapes([(f"layer{i + 1}", sizes[i], sizes[i + 1]) for i in range(len(backbone.hidden))])

    def load(self, state: State, mean: State, square: State) -> None:
        load_parameters(self.parameters, self.prefix, state, mean, square)

    def read(self) -> tuple[State, State, State]:
        return read_parameters(self.parameters, self.prefix)

    def write_state(self, flat: Tensor, statistics: Sequence[Tensor], state: State) -> None:
        """Copy a state into `flat`, a tensor of the parameters' layout."""
        write_flat(self.parameters, flat, self.prefix, state)

    def read_state(self, flat: Tensor, statistics: Sequence[Tensor], whole: State) -> State:
        """Copy of the state that `write_state` has written."""
        return read_flat(self.parameters, flat, self.prefix)

    def statistics(self) -> list[Tensor]:
        """Tensors that a step changes besides the parameters."""
        return []

    def forward(self, x: Tensor) -> Tensor:
        """Views (K, n, n_inputs) -> features (K, n, n_features); every layer has its own output buffer."""
        self.x = x
        for layer in self.layers:
            x = layer.forward(x, relu=True)
        return x

    def backward(self, d: Tensor, adam_scales: Tensor, side_stream: SideStream) -> None:
        """Take Adam's step for every layer, from the gradient of the features."""
        for i in reversed(range(len(self.layers))):
            x = self.layers[i - 1].out if i else self.x
            next_d = self.layers[i].backward(d, gate=x) if i else d
            with side_stream:
                self.layers[i].update(x, d, adam_scales)
            d = next_d


def linear_shapes(layers: Sequence[tuple[str, int, int]]) -> dict[str, tuple[int, ...]]:
    """Shapes of weights and biases, by name, of layers (name, in, out)."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, n_in, n_out in layers:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (n_in, n_out), (n_out,)
    return shapes


def load_parameters(parameters: Parameters, prefix: str, state: State, mean: State, square: State) -> None:
    """Copy stacked tensors into the flat ones; only for layers that the kernels store in the same layout."""
    for flat, given in ((parameters.weight, state), (parameters.mean, mean), (parameters.square, square)):
        write_flat(parameters, flat, prefix, given)


def write_flat(parameters: Parameters, flat: Tensor, prefix: str, state: State) -> None:
    """Copy the stacked tensors of the names with a prefix into one flat tensor."""
    for name in (n for n in parameters.shapes if n.startswith(prefix)):
        parameters.view(flat, name).copy_(state[name.removeprefix(prefix)])


def read_parameters(parameters: Parameters, prefix: str) -> tuple[State, State, State]:
    """Copies of weights, means and squares; the inverse of `load_parameters`."""
    weight, mean, square = (
        read_flat(parameters, flat, prefix) for flat in (parameters.weight, parameters.mean, parameters.square)
    )
    return weight, mean, square


def read_flat(parameters: Parameters, flat: Tensor, prefix: str) -> State:
    """Copies of the tensors of the names with a prefix; the inverse of `write_flat`."""
    names = (n for n in parameters.shapes if n.startswith(prefix))
    return {n.removeprefix(prefix): parameters.view(flat, n).clone() for n in names}
