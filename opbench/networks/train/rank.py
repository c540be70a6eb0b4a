"""The process of one rank, started by `ranks` as `python -m opbench.networks.train.rank DESCRIPTOR NAME`."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from multiprocessing.connection import Connection

from opbench.errors import OpbenchError
from opbench.graph.saving import load
from opbench.kernels.folders import Catalog
from opbench.networks.train.group import Job, RankGroup
from opbench.networks.train.training import Trainer


def main() -> None:
    """Receive the rank's task from the main process, train, and report the end or the error."""
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    pipe = Connection(int(sys.argv[1]))
    job: Job = pipe.recv()
    group = RankGroup(pipe, job.rank, job.options.recipe.ranks)
    group.start_heartbeat()
    try:
        network = load(job.network, Catalog(job.options.variants))
        trainer = Trainer(network, job.data, job.options, rank=job.rank, group=group, progress=group.send_progress)
        if job.rank == 0:
            trainer.run(group.send_progress)
        else:
            trainer.run_without_record()
    except OpbenchError as error:
        group.failed(error)
        sys.exit(error.exit_code)
    except Exception as error:
        traceback.print_exc()
        group.failed(error)
        sys.exit(1)
    group.send_done()
    sys.stdout.flush()
    os._exit(0)  # end at once, without waiting for threads of libraries


def _end_with_the_parent() -> None:
    """End this process when its parent ends; otherwise it could wait for other ranks forever."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
