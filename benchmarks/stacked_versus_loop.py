"""One round of local training of K clients: stacked, against a loop of module + optimiser over the same batches.

    python benchmarks/stacked_versus_loop.py --clients 100 --device cpu --threads 1
    python benchmarks/stacked_versus_loop.py --clients 100 --device cuda --precision bf16

Both sides train the MLP 784-128-128-10 on the same data with the same batches in one process, in turns; the medians of
the pairs and their ratio are printed, with the time that the floating-point operations alone would take at the speed
of a large matrix product measured beside them. With ``--precision bf16`` both sides, and the product, compute in
bfloat16: compare the seconds with those of a run without it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from coterie.federation.data import ClientData
from coterie.models import Models, Stack, build_model, module_of
from coterie.training import BatchPlan, TrainingSettings, cross_entropy, fit
from coterie.training.keys import client_keys

SHAPE, CLASSES = (1, 28, 28), 10


def plan_for(data: ClientData, batch: int, epochs: int, device: str) -> BatchPlan:
    keys = client_keys(0, [f"client-{i}" for i in range(data.k)], 1, "batches")
    counts, starts = data.n.cpu().numpy(), data.offsets[:-1].cpu().numpy()
    return BatchPlan(counts, starts, keys, batch, epochs=epochs, device=device)


def stacked(stack: Stack, theta: Models, data: ClientData, training: TrainingSettings, chunk: int) -> Models | None:
    result = None
    for begin in range(0, data.k, chunk):
        rows = range(begin, min(begin + chunk, data.k))
        part = data.select(rows)
        plan = plan_for(part, training.batch_size, training.epochs, str(stack.device))
        keys = torch.zeros(part.k, dtype=torch.int64, device=stack.device)
        result = fit(
            stack, theta[begin : begin + chunk], part, plan, training, training.lr, cross_entropy, dropout_keys=keys
        ).models
    return result


def loop(stack: Stack, theta: Models, data: ClientData, training: TrainingSettings) -> None:
    for row in range(data.k):
        module = module_of(stack, theta, row).to(stack.device).train()
        optimiser = torch.optim.SGD(
            module.parameters(), training.lr, training.momentum, weight_decay=training.weight_decay
        )
        part = data.select([row])
        plan = plan_for(part, training.batch_size, training.epochs, str(stack.device))
        for batch in plan:
            inputs, targets = part.batch(batch.positions[0])
            optimiser.zero_grad()
            with stack.lowering():
                outputs = module(inputs)
            torch.nn.functional.cross_entropy(outputs.float(), targets).backward()
            optimiser.step()


def timed(function: Callable[[], object], device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    function()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def flops_per_second(device: str, dtype: torch.dtype) -> float:
    a = torch.randn(2048, 2048, device=device, dtype=dtype)
    timed(lambda: a @ a, device)
    return 2 * 2048**3 / min(timed(lambda: a @ a, device) for _ in range(5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--examples", type=int, default=128)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["full", "bf16"], default="full")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=None, help="clients per stack (12 on a CPU, all on a GPU)")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    K, n, device = arguments.clients, arguments.examples, arguments.device
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (K * n, *SHAPE), dtype=torch.uint8, generator=generator)
    targets = torch.randint(0, CLASSES, (K * n,), generator=generator)
    data = ClientData(inputs, targets, torch.arange(K + 1) * n, scale=1 / 255).to(device)
    stack = Stack(lambda: build_model("mlp", SHAPE, CLASSES), SHAPE, device=device, precision=arguments.precision)
    theta = stack.initial(0, K)
    chunk = arguments.chunk or (12 if device == "cpu" else K)
    floor = arguments.epochs * n * K * 6 * stack.layout.d / flops_per_second(device, stack.low or stack.dtype)
    where = torch.cuda.get_device_name() if device != "cpu" else f"CPU, {arguments.threads} thread(s)"
    work = f"K = {K}, {n} examples, batch {arguments.batch}, {arguments.epochs} epochs, chunk {chunk}"
    print(f"{where}: {work}, precision {arguments.precision}")
    for label, momentum, decay in (("plain SGD", 0.0, 0.0), ("momentum, weight decay", 0.9, 5e-5)):
        training = TrainingSettings(arguments.epochs, arguments.batch, lr=0.005, momentum=momentum, weight_decay=decay)
        stacked(stack, theta, data, training, chunk)
        pairs = []
        for _ in range(arguments.repeats):
            ours = timed(lambda: stacked(stack, theta, data, training, chunk), device)  # noqa: B023
            theirs = timed(lambda: loop(stack, theta, data, training), device)  # noqa: B023
            pairs.append((ours, theirs))
        ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        print(
            f"  {label:<24} stacked {ours:8.3f} s   loop {theirs:8.3f} s   ratio {ratio:5.2f}   "
            f"stacked / floor {ours / floor:6.2f}"
        )


if __name__ == "__main__":
    main()
