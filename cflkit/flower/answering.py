"""Answer the messages of a node, each in a process of its own that need not load PyTorch first.

Flower's SuperExec starts Python for each message, which then loads PyTorch and Flower for seconds.
Here, a process that has loaded both, and that never has data, is copied for each message.
"""

import contextlib
import os
import sys
import time
from multiprocessing import get_context
from typing import NoReturn

from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import run_clientapp

# The last one is what an optimiser of PyTorch would load
LOADED = [run_clientapp.__module__, "cflkit.flower.client_app", "torch._dynamo"]
POLL = 0.5  # how often the SuperNode is asked for a message, in seconds


def answer_all(address: str, supernode: int) -> NoReturn:
    """Start a process for each message of the SuperNode at an address, until this one ends."""
    start_parent_process_monitor(supernode)
    processes = get_context("forkserver")
    processes.set_forkserver_preload(LOADED)
    asking = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    versioned = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    retrying = make_simple_http_retry_invoker()  # the SuperNode may not listen yet
    link = RuntimeHttpClient.from_server_address(
        address, True, None, [versioned], retry_invoker=retrying
    )
    while True:
        task = link.AcquireTask(asking)
        if task.token:
            arguments = address, task.token, True, None, os.getpid()
            processes.Process(target=run_clientapp, args=arguments).start()
        time.sleep(POLL)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # from the keyboard, or as the SuperNode has ended
        answer_all(sys.argv[1], int(sys.argv[2]))
