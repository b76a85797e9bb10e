"""Any ``torch.nn.Module`` as rows of Theta: its layout, initial rows, and the forward pass of many rows.

Three executors give the same numbers: ``stacked`` (own batched layers, for sequences of linear and
element-wise layers), ``vmap`` (any module that ``torch.func`` can batch) and ``loop`` (one row after another,
for every module).
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.func import vmap as torch_vmap

from coterie.errors import CoterieError, describe
from coterie.models.culprit import at_work, drawing, first_of, named, not_stackable
from coterie.models.dropout import count_calls, replace_dropout
from coterie.models.layers import Sinks, StackedLayers, stacked_layers
from coterie.models.padding import sees_padding
from coterie.models.precision import Precision, autocast, forbid_short_products, lowered, products_in, raised
from coterie.models.replica import Replica, channels_last, explained, set_mode
from coterie.models.rows import Buffers, Layout, Models
from coterie.models.width import widths

Executor = Literal["auto", "stacked", "vmap", "loop"]
logger = logging.getLogger("coterie.models")
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = nn.modules.batchnorm._NormBase


class Stack:
    """Runs k copies of one architecture side by side.

    ``in_turn`` says which layer is the reason, where copies are run one after the other because they cannot be batched.
    ``low`` is what the products of matrices behind a gradient are computed in, None where that is ``dtype``.
    ``widest`` counts the numbers that the widest layer takes or makes of one example.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        feature_shape: tuple[int, ...],
        *,
        executor: Executor = "auto",
        policy: Buffers = "average",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        head: str | None = None,
        precision: Precision = "full",
    ) -> None:
        self.build = build
        self.feature_shape = feature_shape
        self.dtype = dtype
        self.device = torch.device(device)
        self.low = products_in(precision, dtype, self.device)
        forbid_short_products(self.device)
        self.module = self._fresh(0).to(self.device)
        self._threads = threading.local()
        self._keys = replace_dropout(self.module)
        if head is None:
            self.head = head_name(self.module)
            _check_trainable(self.module)
        else:  # a part of a model that was checked
            self.head = head
        self.layout = _layout(self.module, self.head, self._keys, policy)
        self.mixes_examples = any(isinstance(m, _NORMS) for m in self.module.modules())
        self._layers: StackedLayers | None = None
        self._featuriser: Stack | None = None
        self._building = threading.Lock()
        self._check_statistics()
        self._assigned, self.widest = self._probe()
        self.smallest_batch = self._smallest_batch()
        self.in_turn: str | None = None
        self.executor = self._choose(executor)
        self.sees_padding = self.executor == "vmap" and self._sees_padding()

    @property
    def draws(self) -> bool:
        """Whether training draws random numbers, for which a step needs keys (dropout)."""
        return bool(self._keys)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The buffers that hold the keys of dropout layers."""
        return tuple(self._keys)

    @property
    def replica(self) -> Replica:
        """The thread's own module that holds one row after another."""
        if not hasattr(self._threads, "replica"):
            self._threads.replica = Replica(self.module, self._assigned)
        replica: Replica = self._threads.replica
        return replica

    # --- rows -----------------------------------------------------------------------------------------------
    def initial(self, seed: int, count: int = 1, *, distinct: bool = False) -> Models:
        """``count`` rows of initial weights drawn from ``seed``: one common row, or ``distinct`` ones."""
        draws = [self._fresh(seed + index).state_dict() for index in range(count if distinct else 1)]
        names = (*self.layout.parameters, *self.layout.buffers)
        models = Models(self.layout, {n: torch.stack([draw[n] for draw in draws]).to(self.device) for n in names})
        return models if distinct or count == 1 else models.repeat(count)

    def _check_statistics(self) -> None:
        """Refuse what would evaluate a client by the examples that are measured beside its own."""
        for name, module in self.module.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
                raise CoterieError(
                    f"model {type(self.module).__name__}: {name} is a batch normalisation without running statistics, "
                    "so that an example's prediction would depend on those beside it; leave track_running_stats on, "
                    "or use torch.nn.GroupNorm"
                )

    def _probe(self) -> tuple[tuple[str, ...], int]:
        """Try one small batch: what does not fit, and unkeyed random numbers, show at once.

        Returns the buffers that are replaced, and the numbers that the widest layer takes or makes of an example.
        """
        module = self._fresh(0).train()
        replace_dropout(module)
        held = {name: module.get_buffer(name) for name in self.layout.buffers}
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            before = torch.get_rng_state()
            try:
                examples = torch.zeros(2, *self.feature_shape, dtype=self.dtype)
                with drawing(module) as drew, widths(module) as made:
                    module(examples)
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                raise CoterieError(
                    f"model {type(module).__name__} cannot take inputs of shape {self.feature_shape}: {error}"
                ) from error
            if not torch.equal(before, torch.get_rng_state()):
                raise CoterieError(
                    f"model {type(module).__name__} draws random numbers that no key decides, in "
                    f"{named(module, drew[0])}, so that runs could not be repeated; use torch.nn.Dropout modules for "
                    "its dropout, and dropout=0 in attention and recurrent layers"
                )
        assigned = tuple(name for name, buffer in held.items() if module.get_buffer(name) is not buffer)
        for name in assigned:
            if (shape := module.get_buffer(name).shape) != held[name].shape:
                raise CoterieError(
                    f"model {type(module).__name__} replaces its buffer {name} of shape {tuple(held[name].shape)} by "
                    f"one of shape {tuple(shape)}, which a row of models cannot hold; let its shape stay"
                )
        return assigned, max(examples.numel(), *made) // len(examples)

    def _smallest_batch(self) -> int:
        """Two examples where the model's layers cannot train on a single one (batch normalisation), else one."""
        if not self.mixes_examples:
            return 1
        try:
            with torch.no_grad():
                self._fresh(0).train()(torch.zeros(1, *self.feature_shape, dtype=self.dtype))
        except ValueError:
            return 2
        return 1

    def _sees_padding(self) -> bool:
        module = self._fresh(0)
        replace_dropout(module)
        return self.mixes_examples or sees_padding(module, self.feature_shape, self.dtype)

    def _fresh(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed % 2**63)  # modules are built on the CPU
            return copy.deepcopy(self.build()).to(self.dtype)  # a factory may hand out one module again and again

    def entries(self, rows: int) -> int:
        """Numbers that the widest layer makes at once of one example of each of ``rows`` models."""
        return self.widest * (1 if self.executor == "loop" else rows)

    # --- forward --------------------------------------------------------------------------------------------
    def forward(
        self,
        tensors: Mapping[str, Tensor],
        inputs: Tensor,
        *,
        train: bool = False,
        sizes: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Outputs ``(k, B, ...)`` of k rows on their own batches ``inputs: (k, B, *features)``.

        ``sizes: (k,)`` says how many of the B examples are real where batches are padded; a model whose layers would
        see the padding (batch normalisation, or dropout along another axis) then sees exactly these. In training,
        buffers in ``tensors`` are updated in place and dropout draws from ``keys: (k,)`` int64.
        """
        inputs = inputs.to(self.dtype)
        tensors = self._with_keys(tensors, len(inputs), keys if train else None, train)
        if self._layers is not None:
            return self._layers(tensors, inputs)
        set_mode(self._lent, train)
        if self.executor == "loop":
            return self._loop(tensors, inputs, sizes if train else None)
        if train and sizes is not None and self.sees_padding and bool((sizes < inputs.shape[1]).any()):
            return self._by_size(tensors, inputs, sizes)
        return self._batched(tensors, inputs)

    def traced(
        self, tensors: Mapping[str, Tensor], inputs: Tensor, *, train: bool = False, keys: Tensor | None = None
    ) -> tuple[Tensor, Callable[[Tensor, Sinks], None]]:
        """`forward` (executor ``stacked`` only), and the way back from the outputs' gradient to the parameters'."""
        if self._layers is None:
            raise ValueError(f"executor {self.executor} has no way back of its own")
        tensors, inputs = self._with_keys(tensors, len(inputs), keys, train), inputs.to(self.dtype)
        if self.low is None:
            return self._layers.traced(tensors, inputs)
        return raised(*self._layers.traced(lowered(tensors, self.low), inputs.to(self.low)), self.dtype)

    @property
    def in_full_precision(self) -> Stack:
        """This stack with all products in ``dtype``."""
        if self.low is None:
            return self
        full = copy.copy(self)
        full.low = None
        return full

    def lowering(self) -> AbstractContextManager[object]:
        """Within it `forward` and the replica compute products in ``low``, and outputs may be of that type."""
        return autocast(self.low, self.device)

    def _with_keys(
        self, tensors: Mapping[str, Tensor], rows: int, keys: Tensor | None, train: bool
    ) -> Mapping[str, Tensor]:
        """``tensors`` and what the dropout layers draw from."""
        if self._keys and train:
            if keys is None:
                raise ValueError("a model with dropout needs keys in training")
            return {**tensors, **dict.fromkeys(self._keys, keys)}
        if self._keys and self._layers is None:
            return {**tensors, **dict.fromkeys(self._keys, torch.zeros(rows, dtype=torch.int64, device=self.device))}
        return tensors

    @property
    def _lent(self) -> nn.Module:
        """The thread's own module, to which a functional call lends tensors for a moment."""
        if not hasattr(self._threads, "module"):
            self._threads.module = copy.deepcopy(self.module)
            count_calls(self._threads.module)
        module: nn.Module = self._threads.module
        return module

    def _batched(self, tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        return torch_vmap(self._call)(dict(tensors), inputs)

    def _call(self, tensors: dict[str, Tensor], inputs: Tensor) -> Tensor:
        lent = {**tensors, **{name: tensors[name].clone() for name in self._assigned}}  # the way back may read it
        with explained():
            output: Tensor = functional_call(self._lent, lent, (inputs,))
        for name in self._assigned if self._lent.training else ():  # here is what the module put in its place
            tensors[name].copy_(lent[name].detach())
        return output

    def _loop(self, tensors: Mapping[str, Tensor], inputs: Tensor, sizes: Tensor | None) -> Tensor:
        lengths = [inputs.shape[1]] * len(inputs) if sizes is None else sizes.tolist()
        # the gradient of unbind is one stack, that of indexing would be a sum of k stacks
        rows = {name: tensor.unbind() for name, tensor in tensors.items()}
        outputs = []
        for row, length in enumerate(lengths):
            output = self._call(
                {name: tensor[row] for name, tensor in rows.items()}, channels_last(inputs[row, :length])
            )
            outputs.append(_pad(output, inputs.shape[1]))
        return torch.stack(outputs)

    def _by_size(self, tensors: Mapping[str, Tensor], inputs: Tensor, sizes: Tensor) -> Tensor:
        """Rows grouped by their exact batch size, for models that padding would change."""
        groups = [(size, (sizes == size).nonzero().flatten()) for size in set(sizes.tolist())]
        outputs, order = [], []
        for size, rows in groups:
            own = {name: tensor[rows] for name, tensor in tensors.items()}
            outputs.append(_pad_stack(self._batched(own, inputs[rows, :size]), inputs.shape[1]))
            order.append(rows)
            with torch.no_grad():
                for name in self.layout.buffers:
                    tensors[name][rows] = own[name]
        return torch.cat(outputs)[torch.cat(order).argsort()]

    def _without_head(self) -> Stack:
        head = self.head

        def build() -> nn.Module:
            if not head:  # the whole model is the head
                return nn.Identity()
            module = copy.deepcopy(self.build())
            parent, _, leaf = head.rpartition(".")
            setattr(module.get_submodule(parent), leaf, nn.Identity())
            return module

        return Stack(build, self.feature_shape, executor=self.executor, dtype=self.dtype, device=self.device, head=head)

    def features(self, tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """What enters the head, in evaluation mode: ``(k, B, ...)``."""
        with self._building:  # worker threads may ask at the same time
            self._featuriser = self._featuriser or self._without_head()
        names = (*self._featuriser.layout.parameters, *self._featuriser.layout.buffers)
        return self._featuriser.forward({name: tensors[name] for name in names}, inputs)

    # --- choice of the executor -----------------------------------------------------------------------------
    def _choose(self, wanted: Executor) -> Literal["stacked", "vmap", "loop"]:
        layers = stacked_layers(self.module)
        if wanted == "stacked" and layers is None:
            raise CoterieError(
                f"executor 'stacked' cannot run {type(self.module).__name__} because of {not_stackable(self.module)}: "
                "it takes Linear, Flatten, Dropout and activations in sequence; use executor auto, vmap or loop"
            )
        if wanted in ("auto", "stacked") and layers is not None:
            self._layers = layers
            return "stacked"
        if wanted == "vmap" or (wanted == "auto" and self._worth_batching()):
            error = self._try_vmap()
            if error is None:
                return "vmap"
            if wanted == "vmap":
                raise CoterieError(
                    f"executor 'vmap' cannot run {type(self.module).__name__} ({error}); use executor auto or loop"
                )
            self.in_turn = error
            logger.info("%s runs one client after the other: %s", type(self.module).__name__, error)
        return "loop"

    def _worth_batching(self) -> bool:
        if self.device.type != "cpu":
            return True
        return not any(isinstance(m, _CONVOLUTIONS) for m in self.module.modules())

    def _try_vmap(self) -> str | None:
        """Why the model cannot be batched, naming the layer; None where it can."""
        if recurrent := first_of(self.module, nn.RNNBase):
            return f"recurrent layers have no batching rule: {recurrent}"
        if any(isinstance(m, _NORMS) and m.momentum is None for m in self.module.modules()):
            return f"batch normalisation with momentum=None has no batching rule: {first_of(self.module, _NORMS)}"
        self.executor = "vmap"
        rows = self.initial(0, 2, distinct=True)
        inputs = torch.zeros(2, 2, *self.feature_shape, dtype=self.dtype, device=self.device)
        keys = torch.zeros(2, dtype=torch.int64, device=self.device)
        with at_work(self._lent) as active:
            try:
                leaves = {n: t.requires_grad_() for n, t in rows.parameters()}
                with self.lowering():
                    outputs = self.forward({**rows.tensors, **leaves}, inputs, train=True, keys=keys)
                if leaves:
                    torch.autograd.grad(outputs.sum(), list(leaves.values()), allow_unused=True)
            except Exception as error:  # whatever it is: a plain batch has passed
                where = named(self.module, active[-1]) if active else "its backward pass"
                return f"{where} cannot be batched over clients: {describe(error).split('. ')[0]}"
        return None


def head_name(module: nn.Module) -> str:
    """The name of the head: the module's own ``head_name``, else its last Linear, else its last layer."""
    declared = getattr(module, "head_name", None)
    if isinstance(declared, str):
        if not any(name.startswith(f"{declared}.") for name, _ in module.named_parameters()):
            raise CoterieError(
                f"model {type(module).__name__} declares the head '{declared}', which has no parameters; "
                "name a layer that has"
            )
        return declared
    linear: list[str] = [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]
    if linear:
        return linear[-1]
    owners: list[str] = [
        name for name, child in module.named_modules() if any(True for _ in child.parameters(recurse=False))
    ]
    if not owners:
        raise CoterieError(f"model {type(module).__name__} has no parameters; give a model that can be trained")
    return owners[-1]


def _check_trainable(module: nn.Module) -> None:
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise CoterieError(
            f"all parameters of model {type(module).__name__} are frozen, so that nothing can be trained; leave "
            "requires_grad on in some"
        )


def _layout(module: nn.Module, head: str, keys: list[str], policy: Buffers) -> Layout:
    saved = module.state_dict()
    parameters = tuple(name for name, _ in module.named_parameters())
    buffers = tuple(name for name, _ in module.named_buffers() if name in saved and name not in keys)
    prefix = f"{head}." if head else ""
    return Layout(
        parameters,
        buffers,
        {name: saved[name].shape for name in (*parameters, *buffers)},
        frozenset(name for name in parameters if name.startswith(prefix)),
        policy,
        frozenset(name for name, parameter in module.named_parameters() if not parameter.requires_grad),
    )


def _pad(output: Tensor, length: int) -> Tensor:
    if len(output) == length:
        return output
    return torch.cat([output, output.new_zeros(length - len(output), *output.shape[1:])])


def _pad_stack(output: Tensor, length: int) -> Tensor:
    if output.shape[1] == length:
        return output
    zeros = output.new_zeros(len(output), length - output.shape[1], *output.shape[2:])
    return torch.cat([output, zeros], dim=1)


def module_of(stack: Stack, models: Models, row: int) -> nn.Module:
    """A plain module of the user's own class that holds one row."""
    module = stack._fresh(0)
    state = module.state_dict()
    state.update({name: tensor[row].detach().cpu() for name, tensor in models.tensors.items()})
    module.load_state_dict(state)
    return module
