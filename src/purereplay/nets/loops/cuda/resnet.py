"""K ResNet-18s trained side by side by hand-written kernels; equals `nets/resnet.py` with autograd and Adam.

`forward` maps images (K, n, size, size, padded channels) to features (K, n, n_features). `backward` takes the gradient
of the features and updates the weights. All buffers are allocated once, so that a step can be captured as a CUDA graph.
The backward pass overwrites the output of each convolution by its gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from purereplay.nets.loops.cuda import conv, conv_gradients, norms, pools, stem
from purereplay.nets.loops.cuda.conv_gradients import LayerBelow, Projection
from purereplay.nets.loops.cuda.layers import Block, Layer, aligned, block_specs, stem_spec
from purereplay.nets.loops.cuda.parameters import Parameters
from purereplay.nets.loops.cuda.shapes import Packing
from purereplay.nets.loops.cuda.update import UPDATE_BLOCK, update
from purereplay.nets.resnet import ResNet18

State = dict[str, Tensor]


class CudaResNet:
    """K networks of one shape and their training step; the weights are in `parameters`, under `prefix` + name."""

    gates_features = False  # features are means

    def __init__(
        self,
        backbone: ResNet18,
        k: int,
        n_views: int,
        device: torch.device,
        dtype: torch.dtype,
        parameters: Parameters,
        prefix: str,
        clip: float | None = None,
    ) -> None:
        if n_views < 2:
            raise ValueError("batch norm needs at least two views")
        self.backbone, self.parameters, self.prefix, self.clip = backbone, parameters, prefix, clip
        own = (k, n_views, device, dtype, parameters, prefix)
        self.stem = Layer(stem_spec(backbone), *own)
        self.pixel = Packing.of(self.stem.geometry).pixel  # channels of the images, padded
        self.layers, self.blocks = [self.stem], []
        for specs in block_specs(backbone):
            first, second = Layer(specs[0], *own), Layer(specs[1], *own)
            projection = None if specs[2] is None else Layer(specs[2], *own)
            hidden, out = torch.zeros_like(first.raw), torch.zeros_like(second.raw)
            self.blocks.append(Block(first, second, projection, hidden, out))
            self.layers += [first, second] if projection is None else [first, second, projection]
        inside, last = self.blocks[0].first.geometry, self.blocks[-1].out
        self.start = torch.zeros(k, n_views, inside.size_in, inside.size_in, inside.n_in, device=device, dtype=dtype)
        self.pools = backbone.stem == "imagenet"
        self.start_raw = torch.zeros_like(self.start) if self.pools else self.stem.raw
        self.start_index = torch.zeros_like(self.start, dtype=torch.uint8) if self.pools else None
        self.features = last.view(k, n_views, -1) if last.shape[2] == 1 else last.new_zeros(k, n_views, last.shape[-1])
        # gradients of a block's output, of its input, and of the map between its convolutions
        most = max(self.start.numel(), *(block.out.numel() for block in self.blocks))
        self.gradients = [torch.zeros(most, device=device, dtype=dtype) for _ in range(3)]
        n_sums = max(pools.n_mean_pool_sums(last), *(layer.n_sums for layer in self.layers))
        self.sums = torch.zeros(k, aligned(n_sums), device=device)
        self._lay_out_update(k, device)
        self.whole: State = {}  # loaded weights of convolutions with unused taps
        self.images: Tensor  # of the last forward pass
        self.side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def _lay_out_update(self, k: int, device: torch.device) -> None:
        """Assign the offsets of gradient parts, and make one row of `update_blocks` per block that Adam updates."""
        rows: list[tuple[int, int, int, int, int]] = []
        total = 0

        def allocate(offset: int, size: int, n_parts: int) -> int:
            nonlocal total
            begin, total = total, total + n_parts * size
            for at in range(0, size, UPDATE_BLOCK):
                rows.append((offset + at, min(UPDATE_BLOCK, size - at), begin + at, n_parts, size))
            return begin

        for layer in self.layers:
            width = aligned(layer.geometry.n_out)
            layer.gradient_offset = allocate(layer.offset, layer.part_size, layer.n_parts)
            weight, bias = layer.norm_offsets
            layer.norm_gradient_offsets = (allocate(weight, width, 1), allocate(bias, width, 1))
        self.gradient = torch.zeros(k, total, device=device)
        self.update_blocks = torch.tensor(rows, dtype=torch.int32, device=device)

    @staticmethod
    def shapes(backbone: ResNet18) -> dict[str, tuple[int, ...]]:
        """Shapes of all trained tensors, by their names in `ResNet18.init`; without unused taps."""
        shapes: dict[str, tuple[int, ...]] = {}
        specs = [stem_spec(backbone), *(spec for block in block_specs(backbone) for spec in block if spec)]
        for spec in specs:
            shapes[f"{spec.conv}.weight"] = spec.weight_shape()
            shapes[f"{spec.norm}.weight"] = shapes[f"{spec.norm}.bias"] = (spec.geometry.n_out,)
        return shapes

    def load(
        self, state: Mapping[str, Tensor], mean: Mapping[str, Tensor] | None, square: Mapping[str, Tensor] | None
    ) -> None:
        """Load stacked tensors of K networks and Adam's moments (None: zeros), with names and shapes of `ResNet18`."""
        p = self.parameters
        self.write_state(p.weight, self.statistics(), state)
        self._write(p.mean, mean)
        self._write(p.square, square)
        for layer in self.layers:
            name = f"{layer.spec.conv}.weight"
            if self._used(layer, state[name]).shape != state[name].shape:
                self.whole[name] = state[name].to(layer.raw.device, copy=True)
        p.refresh_half()

    def read(self) -> tuple[State, State, State]:
        """Copies of state, mean and square, as `load` takes them; unused taps are unchanged and have moments 0."""
        p = self.parameters
        zeros = {name: torch.zeros_like(t) for name, t in self.whole.items()}
        state = self.read_state(p.weight, self.statistics(), self.whole)
        return state, self._read(p.mean, zeros), self._read(p.square, zeros)

    def write_state(self, flat: Tensor, statistics: Sequence[Tensor], state: Mapping[str, Tensor]) -> None:
        """Copy a state into tensors of the layout of `parameters.weight` and `statistics()`; unused taps are left."""
        self._write(flat, state)
        for layer, running in zip(self.layers, statistics, strict=True):
            running[:, 0].copy_(state[f"{layer.spec.norm}.running_mean"])
            running[:, 1].copy_(state[f"{layer.spec.norm}.running_var"])

    def read_state(self, flat: Tensor, statistics: Sequence[Tensor], whole: State) -> State:
        """Copy of the state that `write_state` has written; unused taps are those of `whole`."""
        return self._read(flat, whole, statistics)

    def _write(self, flat: Tensor, source: Mapping[str, Tensor] | None) -> None:
        for layer in self.layers:
            spec = layer.spec
            for name in (f"{spec.conv}.weight", f"{spec.norm}.weight", f"{spec.norm}.bias"):
                view = self.parameters.view(flat, self.prefix + name)
                if source is None:
                    view.zero_()
                elif name.startswith(spec.norm):
                    view.copy_(source[name])
                else:
                    self._kernel_view(layer, view).copy_(self._used(layer, source[name]))

    def _read(self, flat: Tensor, whole: State, statistics: Sequence[Tensor] = ()) -> State:
        read: State = {}
        for i, layer in enumerate(self.layers):
            spec = layer.spec
            name = f"{spec.conv}.weight"
            used = self._kernel_view(layer, self.parameters.view(flat, self.prefix + name))
            if name in whole:
                read[name] = whole[name].clone()
                self._used(layer, read[name]).copy_(used)
            else:
                read[name] = used.clone(memory_format=torch.contiguous_format)
            for name in (f"{spec.norm}.weight", f"{spec.norm}.bias"):
                read[name] = self.parameters.view(flat, self.prefix + name).clone()
            if statistics:
                read[f"{spec.norm}.running_mean"] = statistics[i][:, 0].clone()
                read[f"{spec.norm}.running_var"] = statistics[i][:, 1].clone()
        return read

    @staticmethod
    def _used(layer: Layer, weight: Tensor) -> Tensor:
        """The trained taps of a weight (K, out, in, height, width)."""
        first, kernel = layer.geometry.first, layer.geometry.kernel
        return weight[..., first : first + kernel, first : first + kernel]

    @staticmethod
    def _kernel_view(layer: Layer, view: Tensor) -> Tensor:
        """View a weight in the kernels' layout as (K, out, in, height, width)."""
        g = layer.geometry
        if layer.spec.is_stem:
            packing = Packing.of(g)
            view = view.view(-1, g.kernel, packing.span, packing.pixel, g.n_out)
            view = view[:, :, packing.lead : packing.lead + g.kernel, : g.n_in]
        else:
            view = view.view(-1, g.kernel, g.kernel, g.n_in, g.n_out)
        return view.permute(0, 4, 3, 1, 2)

    def statistics(self) -> list[Tensor]:
        """Tensors that a step changes besides the parameters: running mean and variance of the batch norms."""
        return [layer.running for layer in self.layers]

    def forward(self, images: Tensor) -> Tensor:
        """Features of images (K, n, size, size, pixel), normalised over each network's n images."""
        if not images.is_contiguous():
            raise ValueError("images must be contiguous")
        self.images = images
        self._convolve(self.stem, images)
        if self.start_index is None:
            norms.normalise(self.stem.raw, self.stem.table, self.start)
        else:
            pools.max_pool(self.stem.raw, self.stem.table, self.start, self.start_raw, self.start_index)
        x = self.start
        for block in self.blocks:
            first, second, projection = block.first, block.second, block.projection
            self._convolve(first, x)
            norms.normalise(first.raw, first.table, block.hidden)
            self._convolve(second, block.hidden)
            if projection is None:
                norms.normalise(second.raw, second.table, block.out, x)
            else:
                self._convolve(projection, x)
                norms.normalise(second.raw, second.table, block.out, projection.raw, projection.table)
            x = block.out
        if x.shape[2] > 1:
            pools.mean_pool(x, self.features)
        return self.features

    def _convolve(self, layer: Layer, x: Tensor) -> None:
        launch = stem.stem_forward if layer.spec.is_stem else conv.forward
        p = self.parameters
        n_tiles = launch(layer.geometry, layer.tiles, x, p.half, layer.offset, layer.raw, self.sums)
        norms.statistics(
            layer.geometry,
            layer.tiles,
            self.sums,
            n_tiles,
            layer.n,
            p.weight,
            layer.norm_offsets,
            layer.running,
            layer.table,
        )

    def backward(self, d_features: Tensor, adam_scales: Tensor) -> None:
        """Take Adam's step for all parameters from the features' gradient; adam_scales (K, 2): see `kernels.adam`."""
        if not d_features.is_contiguous():
            raise ValueError("the gradient of the features must be contiguous")
        g, other, between = self.gradients
        n_tiles = pools.mean_pool_gradient(
            d_features, self._shaped(g, self.blocks[-1].out), self.sums, self.blocks[-1].below()
        )
        for i in reversed(range(len(self.blocks))):
            block = self.blocks[i]
            x = self.blocks[i - 1].out if i else self.start
            below = self.blocks[i - 1].below() if i else LayerBelow(self.start_raw, self.stem.table)
            n_tiles = self._block_backward(
                block, x, below, n_tiles, self._shaped(g, block.out), self._shaped(other, x), between
            )
            g, other = other, g
        self._norm_gradient(self.stem, n_tiles, 1)
        if self.start_index is None:
            norms.normalise_gradient(self._shaped(g, self.start), self.stem.raw, self.stem.table)
        else:
            pools.max_pool_gradient(self._shaped(g, self.start), self.start_index, self.stem.raw, self.stem.table)
        self._weight_gradient(self.stem, self.images)
        if self.side is not None:
            torch.cuda.current_stream(self.sums.device).wait_stream(self.side)
        update(self.gradient, self.update_blocks, self.parameters, adam_scales, self.clip)

    def _block_backward(
        self, block: Block, x: Tensor, below: LayerBelow, n_tiles: int, g: Tensor, out: Tensor, between: Tensor
    ) -> int:
        """From the gated gradient `g` of a block's output to that of its input x, with sums for the layers below."""
        first, second, projection = block.first, block.second, block.projection
        half = self.parameters.half
        shortcut: Projection | None = None
        self._norm_gradient(second, n_tiles, 1)
        if projection is None:
            norms.normalise_gradient(g, second.raw, second.table)
        else:
            shortcut = Projection(projection.geometry, projection.raw, projection.offset)
            self._norm_gradient(projection, n_tiles, 2)
            norms.normalise_gradient(g, second.raw, second.table, projection.raw, projection.table)
        with self._on_side_stream():
            self._weight_gradient(second, block.hidden)
            if projection is not None:
                self._weight_gradient(projection, x)
        hidden = self._shaped(between, block.hidden)
        n_tiles = conv_gradients.data_gradient(
            second.geometry,
            second.data_tiles,
            second.raw,
            half,
            second.offset,
            hidden,
            self.sums,
            LayerBelow(first.raw, first.table),
        )
        self._norm_gradient(first, n_tiles, 1)
        norms.normalise_gradient(hidden, first.raw, first.table)
        with self._on_side_stream():
            self._weight_gradient(first, x)
        return conv_gradients.data_gradient(
            first.geometry,
            first.data_tiles,
            first.raw,
            half,
            first.offset,
            out,
            self.sums,
            below,
            residual=g if projection is None else None,
            projection=shortcut,
        )

    def _norm_gradient(self, layer: Layer, n_tiles: int, which: int) -> None:
        norms.gradient_statistics(
            self.sums, n_tiles, which, layer.n_values, layer.table, self.gradient, layer.norm_gradient_offsets
        )

    def _weight_gradient(self, layer: Layer, x: Tensor) -> None:
        launch = stem.stem_gradient if layer.spec.is_stem else conv_gradients.weight_gradient
        launch(
            layer.geometry,
            layer.weight_tiles,
            x,
            layer.raw,
            self.gradient,
            layer.gradient_offset,
            layer.part_size,
            layer.n_parts,
        )

    @contextmanager
    def _on_side_stream(self) -> Iterator[None]:
        """Launch on the second stream, in parallel to what follows, until the streams are joined."""
        if self.side is None:
            yield
            return
        self.side.wait_stream(torch.cuda.current_stream(self.sums.device))
        with torch.cuda.stream(self.side):
            yield

    @staticmethod
    def _shaped(buffer: Tensor, like: Tensor) -> Tensor:
        """The start of a flat buffer in the shape of another tensor."""
        return buffer[: like.numel()].view(like.shape)
