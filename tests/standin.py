"""A device for tests that stands in for a GPU: it computes on the CPU, and refuses CPU tensors.

Each of its tensors is an empty shell around a CPU tensor, and every operation is done on the CPU
tensors. Results are therefore those of the CPU, up to rounding: shells have no strides, so that
torch may choose another kernel for the same sum. As on a GPU, an operation on tensors
of both devices is an error, except for numbers and for indices on the CPU.

PyTorch can have one such device per process, so that the test starts this file as a script::

    python tests/standin.py METHOD ...

It runs each method on the CPU and on the device, with both engines, and prints one line for each.
"""

import json
import sys
from functools import partial

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

NAME, COMPOSITE = "standin", torch._C.DispatchKey.CompositeImplicitAutograd
backend_registration._setup_privateuseone_for_python_backend(NAME)

# The CPU tensor of each shell, by the shell's storage, which all its aliases share
inside: dict[int, torch.Tensor] = {}


def shell(tensor):
    """Put a CPU tensor into a shell, which has its shape and type."""
    with torch.inference_mode(False):
        empty = torch._C._acc.create_empty_tensor(tensor.shape, tensor.dtype)
    inside[empty.untyped_storage()._cdata] = tensor
    return empty


def opened(value):
    """Return the CPU tensor of a shell; anything else as it is."""
    if isinstance(value, torch.Tensor) and value.device.type == NAME:
        return inside[value.untyped_storage()._cdata]
    return value


def compute(operation, *args, **options):
    """Do an operation on the CPU tensors of its arguments."""
    schema = operation._schema
    tensors = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, torch.Tensor)]
    shells = [tensor for tensor in tensors if tensor.device.type == NAME]
    if "index" not in schema.name:
        strangers = [tensor for tensor in tensors if tensor.device.type == "cpu" and tensor.ndim]
        assert not strangers, f"{schema.name} has tensors on the CPU, too"
    known = {id(opened(tensor)): tensor for tensor in tensors}
    double = any(tensor.dtype == torch.float64 for tensor in tensors)

    def argument(value, spec):
        if isinstance(value, int | float) and str(spec.type) == "Tensor":  # PyTorch unpacked it
            exact = double and isinstance(value, float)
            return torch.tensor(value, dtype=torch.float64 if exact else None)
        return tree_map(opened, value)

    inner = [argument(value, spec) for value, spec in zip(args, schema.arguments, strict=False)]
    # Shells have no strides, so that autograd may take a transposed gradient for a plain one
    if operation is torch.ops.aten.view.default:
        operation = torch.ops.aten.reshape.default
    if schema.name == "aten::_fused_adam_":
        inner[1] = [gradient.contiguous() for gradient in inner[1]]
    named = {name: tree_map(opened, value) for name, value in options.items()}
    if named.get("device") is not None:
        named["device"] = torch.device("cpu")
    found = operation(*inner, **named)
    for tensor in shells:  # an operation may give its output another shape
        if opened(tensor).shape != tensor.shape:
            tensor.data = shell(opened(tensor))

    def result(value):
        if not isinstance(value, torch.Tensor):
            return value
        return known[id(value)] if id(value) in known else shell(value)

    return tree_map(result, found)


def copied(tensor, *, dtype=None, device=None, **_):
    """Copy a tensor to its own device, or to another one."""
    copy = opened(tensor).to(dtype=dtype, copy=True)
    return copy if device is not None and torch.device(device).type == "cpu" else shell(copy)


def written(tensor, source, non_blocking=False):
    """Write the values of a tensor on any device into another one."""
    opened(tensor).copy_(opened(source))
    return tensor


def views():
    """Yield the operations whose result is a part of their argument."""
    kept = {"detach", "alias", "lift", "lift_fresh", "_fw_primal", "_make_dual"}
    for name in set(dir(torch.ops.aten)) - kept:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            operation = getattr(packet, overload)
            aliases = [returned.alias_info for returned in operation._schema.returns]
            if any(alias is not None and not alias.is_write for alias in aliases):
                yield operation


everything = torch.library.Library("_", "IMPL")
everything.fallback(compute, "PrivateUse1")
single = torch.library.Library("aten", "IMPL")
single.impl("_to_copy", copied, "PrivateUse1")
single.impl("copy_", written, "PrivateUse1")
single.impl("_copy_from", lambda source, tensor, *_: written(tensor, source), "PrivateUse1")
# PyTorch has kernels for all devices of these, so that the fallback is not asked
aten = torch.ops.aten
for operation in (
    *(aten.empty.memory_format, aten.empty_strided.default, aten._local_scalar_dense.default),
    *(aten.arange.default, aten.arange.start, aten.arange.start_step, aten.squeeze_.dim),
):
    single.impl(operation, partial(compute, operation), "PrivateUse1")
for operation in views():
    try:
        derived = operation.has_kernel_for_dispatch_key(COMPOSITE)
    except RuntimeError:  # an operation on no tensors
        continue
    if not derived:
        single.impl(operation, partial(compute, operation), "PrivateUse1")


def main(names):
    """Run methods on both devices with both engines, and say whether the results are the same."""
    import test_contract as contract

    from cflkit import datasets
    from cflkit.federation import Federation, LocalTraining
    from cflkit.partition import shifts

    images = datasets.load("digits-8x8")

    def rows(name, device, engine):
        options = {"model": "linear", "training": LocalTraining(1, 32, lr=0.05)}
        clients = 6
        if name in contract.OF_SAMPLES:  # models of single classes, which are many
            options["model"], clients = "autoencoder", 2
        data = shifts.make(images, "quarter-turn", clients=clients, samples=60)
        federation = Federation(*data, device=device, engine=engine, **options)
        history = contract.run({name: contract.build(name, federation)}, federation)
        return contract.text_of(history, name)

    for name in names:
        for engine in ("stacked", "threads"):
            found = contract.differences(rows(name, "cpu", engine), rows(name, NAME, engine))
            answer = {"method": name, "engine": engine, "differences": found}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
