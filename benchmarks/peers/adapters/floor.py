"""The time that a round's floating-point operations alone take, at the speed of a large matrix product."""

from __future__ import annotations

from time import process_time

import torch

from benchmarks.peers.serving import explained, serve, task

SIZE = 1024


def main() -> None:
    given = task()
    a, b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    out = torch.empty(SIZE, SIZE)
    flops = given.work.flops

    def round() -> float:
        times = []
        for _ in range(5):
            begin = process_time()  # one thread: what waits for a core is no floor
            torch.mm(a, b, out=out)
            times.append(process_time() - begin)
        return flops * min(times) / (2 * SIZE**3)

    serve(round, None, given, "")


if __name__ == "__main__":
    explained(main)
