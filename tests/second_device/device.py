"""A second device without a GPU: tensors that say ``second:0``, compute on the CPU, and refuse to meet CPU tensors.

It shows what code is on the wrong device, in which float64 is assumed, and what happens when memory runs out. It says
nothing of the kernels, the speed or the random numbers of a real device: these are the CPU's, so that results can be
compared bit by bit. Registering a type of device is for good, so the tests on it have a process of their own.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

KIND = "second"


class Limits:
    """What the device lacks: float64, as MPS does, or memory."""

    float64 = True
    most_images = 2**62
    """Of which everything is kept for a backward pass."""


calls: Counter[str] = Counter()
"""How often each operator ran on the device."""


class SecondTensor(torch.Tensor):
    """A tensor of the device; its numbers are in ``inner``, where nobody else looks."""

    __module__ = "torch"  # eagerpy, of foolbox, knows tensors by the package of their class
    __torch_function__ = torch._C._disabled_torch_function_impl
    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor, device: torch.device) -> SecondTensor:
        if inner.dtype == torch.float64 and not Limits.float64:
            raise TypeError("Cannot convert a tensor to float64: the second device does not support it")
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=device,
        )
        made.inner = inner
        return made

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        assert isinstance(value, SecondTensor) and (value.shape, value.stride()) == (self.shape, self.stride())
        self.inner = value.inner

    def __getitem__(self, index: Any) -> Any:
        """Rows that are named by a range or a list, which the CPU's own tensors take, are made a tensor first."""
        parts = index if isinstance(index, tuple) else (index,)
        made = tuple(torch.tensor(list(part)) if isinstance(part, (range, list)) else part for part in parts)
        return super().__getitem__(made if isinstance(index, tuple) else made[0])

    def squeeze_(self, *dims: Any) -> Any:
        """Of another shape afterwards, which a tensor of this device cannot become: it changes places with one."""
        torch.utils.swap_tensors(self, SecondTensor(self.inner.squeeze(*dims), self.device))
        return self

    def __format__(self, spec: str) -> str:
        return format(self.inner.item() if self.inner.dim() == 0 else str(self.inner), spec)

    def __repr__(self, **settings: Any) -> str:  # type: ignore[override]
        return f"{self.inner!r} on {self.device}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved like a tensor of the CPU, as which torch.load would bring back one of CUDA with map_location."""
        return self.inner.detach().__reduce_ex__(protocol)

    def new_tensor(self, data: Any, *, dtype: Any = None) -> Any:  # type: ignore[override]
        return torch.tensor(data, dtype=dtype or self.dtype).to(self.device)

    def tolist(self) -> Any:
        return self.inner.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert a tensor of the second device to numpy; use Tensor.cpu() first")

    __array__ = numpy

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(op, *args, **(kwargs or {}))


def _compute(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The operator on the numbers inside; what comes out is on the device of what went in, or on the one named."""
    there: list[SecondTensor] = []
    here: list[torch.Tensor] = []
    generators: list[torch.Generator] = []

    def look(value: Any) -> Any:
        if isinstance(value, SecondTensor):
            there.append(value)
            return value.inner
        if isinstance(value, torch.Tensor) and value.dim():  # numbers of the CPU may go along, as with CUDA
            here.append(value)
        if isinstance(value, torch.Generator):
            generators.append(value)
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == KIND else value

    name = op.name()
    plain_args, plain_kwargs = tree_map(look, args), tree_map(look, kwargs)
    devices = {tensor.device for tensor in there}
    asked = kwargs.get("device")
    to = torch.device(asked) if asked is not None else there[0].device if there else torch.device(KIND, 0)
    if to.type == KIND:
        to = torch.device(KIND, to.index or 0)
    if not _may_mix(name, args) and len(devices) + bool(here) > 1:
        told = " and ".join(sorted({str(device) for device in devices} | {"cpu" for _ in here[:1]}))
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {told} in {name}")
    if generators and to.type == KIND:
        raise RuntimeError(f"Expected a '{KIND}' device type for generator but found 'cpu' in {name}")
    calls[name] += 1
    result = op(*plain_args, **plain_kwargs)
    if name == "aten::convolution" and torch.is_grad_enabled() and len(result) > Limits.most_images:
        raise torch.OutOfMemoryError(f"the second device is out of memory for {tuple(result.shape)}")
    same = {id(tensor.inner): tensor for tensor in there}

    def wrap(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or to.type != KIND:
            return value
        if id(value) in same:  # an operator in place gives what it was given
            assert same[id(value)].shape == value.shape, f"{name} resized a tensor: add its factory to FACTORIES"
            return same[id(value)]
        return SecondTensor(value, to)

    return tree_map(wrap, result)


def _may_mix(name: str, args: Any) -> bool:
    """Copies between devices, and a tensor of the device indexed by the CPU's numbers: as with CUDA."""
    indexing = name.startswith(("aten::index.Tensor", "aten::index_put", "aten::_index_put"))
    if indexing and isinstance(args[0], SecondTensor):
        value = args[2] if len(args) > 2 else None
        return not isinstance(value, torch.Tensor) or isinstance(value, SecondTensor) or not value.dim()
    return name.startswith(("aten::copy_", "aten::_to_copy", "aten::_copy_from"))


FACTORIES = (
    "arange",
    "arange.start",
    "arange.start_step",
    "eye",
    "eye.m",
    "linspace",
    "randperm",
    "randperm.generator",
)
"""Operators that fill an empty tensor and resize it, which a tensor of this device cannot be."""


class _Module(_DummyBackendModule):
    """``torch.second``: its random numbers are the CPU's."""

    count = 1

    def device_count(self) -> int:
        return self.count

    def get_rng_state(self, device: Any = 0) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = 0) -> None:
        torch.set_rng_state(state)

    def get_device_name(self, device: Any = 0) -> str:
        return "second device of the tests"

    def set_device(self, device: Any) -> None:
        pass

    @contextlib.contextmanager
    def device(self, device: Any) -> Iterator[None]:
        yield


def register(count: int = 1) -> None:
    """Make the device known to PyTorch, for good, with so many of its kind."""
    if _kept:
        return
    _setup_privateuseone_for_python_backend(KIND, backend_module=_Module())
    _Module.count = count
    torch.accelerator.device_count = lambda: count  # type: ignore[assignment]
    library = torch.library.Library("_", "IMPL")
    library.fallback(_compute, dispatch_key="PrivateUse1")
    factories = torch.library.Library("aten", "IMPL")
    for name in FACTORIES:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        factories.impl(name, functools.partial(_compute, op), "PrivateUse1")
    _kept.append(factories)
    _kept.append(library)
    torch.nn.Module.to = functools.partialmethod(_moved, torch.nn.Module.to)  # type: ignore[method-assign]
    _teach_art()


_kept: list[Any] = []
"""Registrations end with the object that made them."""


def _moved(module: torch.nn.Module, original: Any, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """Module.to exchanges the tensors themselves where their class changes, and only there."""
    tensors = [*module.parameters(), *module.buffers()]
    device, dtype, _, layout = torch._C._nn._parse_to(*args, **kwargs)
    if layout is None and dtype is None and all(tensor.device.type == device.type for tensor in tensors):
        return module
    classes_change = (device is not None and device.type == KIND) or any(
        tensor.device.type == KIND for tensor in tensors
    )
    torch.__future__.set_swap_module_params_on_conversion(classes_change)
    try:
        return original(module, *args, **kwargs)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def _teach_art() -> None:
    """ART knows the CPU and CUDA. Here its estimators are given the device of the model, as on CUDA."""
    from art.estimators.pytorch import PyTorchEstimator

    from benchmark.attacks import art_backend

    init = PyTorchEstimator.__init__

    def started(self: Any, device_type: str = "gpu", **settings: Any) -> None:
        init(self, device_type=device_type, **settings)
        if device_type != "cpu":
            self._device = torch.device(KIND, 0)

    PyTorchEstimator.__init__ = started
    art_backend.KINDS = (*art_backend.KINDS, KIND)


@contextlib.contextmanager
def limited(float64: bool = True, most_images: int = 2**62) -> Iterator[None]:
    """A device that lacks something, for a while."""
    from defenses.members.doubles import _has_float64

    before = Limits.float64, Limits.most_images
    Limits.float64, Limits.most_images = float64, most_images
    _has_float64.cache_clear()
    try:
        yield
    finally:
        Limits.float64, Limits.most_images = before
        _has_float64.cache_clear()
