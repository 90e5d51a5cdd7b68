"""Starts worlds of processes that run the cases of `parallel_cases`, and notes what became of them.

    python parallel_world.py FOLDER BACKEND WORLD...

Each rank of each world writes FOLDER/WORLD-RANK.json: case -> null, or the traceback.
"""

import datetime
import json
import os
import sys
import traceback
from pathlib import Path

import parallel_checkpoints  # noqa: F401  (these four register their cases)
import parallel_experts  # noqa: F401
import parallel_int8  # noqa: F401
import parallel_weight_only  # noqa: F401
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from cuda_contexts import contexts
from parallel_rank import CASES, Rank, case
from torch.distributed.device_mesh import init_device_mesh

DEVICES = {"gloo": "cpu", "nccl": "cuda"}
PATIENCE = datetime.timedelta(seconds=120)


@case("a context on its own GPU alone")  # the last case
def _(me: Rank) -> None:
    if me.device == "cuda":
        assert contexts() == [me.rank]
    else:
        assert not torch.cuda.is_initialized()


def run(rank: int, world: int, backend: str, folder: Path) -> None:
    torch.set_num_threads(1)  # OpenMP's threads are gone after a fork
    kind = DEVICES[backend]
    if kind == "cuda":
        torch.cuda.set_device(rank)
    store = dist.FileStore(str(folder / f"store-{world}"), world)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)
    me = Rank(init_device_mesh(kind, (world,)), folder / f"world-{world}")
    became: dict[str, str | None] = {}
    for name, each in CASES.items():
        torch.manual_seed(0)
        try:
            with torch.inference_mode():
                each(me)
            became[name] = None
        except Exception:
            became[name] = traceback.format_exc()
        (folder / f"{world}-{rank}.json").write_text(json.dumps(became))
        well = torch.tensor([int(became[name] is None)], device=kind)
        dist.all_reduce(well, dist.ReduceOp.MIN)
        if not well:
            break  # the ranks may be at different places: later cases would say nothing
    dist.destroy_process_group()


def main(folder: str, backend: str, *worlds: str) -> None:
    # CUDA does not survive a fork; without it, a fork spares the imports.
    method = "spawn" if backend == "nccl" else "fork"
    for world in map(int, worlds):
        Path(folder, f"world-{world}").mkdir()
        arguments = (world, backend, Path(folder))
        mp.start_processes(run, arguments, nprocs=world, start_method=method)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(*sys.argv[1:])
