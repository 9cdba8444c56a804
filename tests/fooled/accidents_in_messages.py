"""What a message names by accident is no evidence: addresses, processes, temporary files, ports."""

import os
import socket
import tempfile

import torch

from experiments.scenario import Scenario, observe, raises

scenario = Scenario(source="a test")


@scenario.inputs
def inputs(seed):
    """Four numbers."""
    return {"data": torch.ones(4, requires_grad=True)}


@scenario.reference
def plain(data):
    return data.sum()


@scenario.broken(raises(TypeError), cause="python value")
def names_an_object(data):
    raise TypeError(f"{object()!r} in process {os.getpid()} of {tempfile.mkdtemp()} (pid {os.getpid()})")


@scenario.broken(raises(FileNotFoundError), cause="python value")
def opens_a_temporary_file(data):
    torch.load(os.path.join(tempfile.mkdtemp(), "state.pt"))


@scenario.broken(raises(RuntimeError), cause="python value")
def names_a_port(data):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        raise RuntimeError(
            f"cannot connect to 127.0.0.1:{listening.getsockname()[1]} after {os.getpid() / 7:.3f} seconds"
        )


@scenario.broken(raises(RuntimeError), cause="python value")
def observes_the_message(data):
    error = RuntimeError(f"no {object()!r} at {os.getpid()} in process {os.getpid()}"[:40])
    observe("said", f"no {object()!r}")
    raise error
