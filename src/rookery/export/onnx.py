"""ONNX export: a policy as a graph from an environment's observations to its actions.

| input | shape |
|---|---|
| `obs`, or one for each entry of a Dict (`goal/position`) | [B, *shape] of the environment |
| the same with a frame stack | [B, frames, *shape], the oldest first |
| `memory` of recurrent policies | [B, M]; zeros at the start of an episode |

B is the batch size, M the size of the recurrent state. A mask (`action_mask`) is an input like the
others; a mask that allows no action is ignored.

Outputs are `action`, [B, *shape] for the environment, and `memory_out` for the next step.
"""

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rookery.algorithms import Algorithm
from rookery.envs.frame_stack import remember
from rookery.envs.spaces import Space, SpaceCodec, channel_axes
from rookery.errors import CheckpointError, ConfigError
from rookery.export.bundle import PolicyBundle
from rookery.types import Array, EnvSpec, Leaf, LeafKind

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
OBS, MEMORY, ACTION, MEMORY_OUT = "obs", "memory", "action", "memory_out"
EXAMPLES = 3  # batch size during tracing; the exported batch size is dynamic


def require() -> None:
    """Raises `ConfigError` if a package for ONNX export is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"ONNX export needs {', '.join(missing)}, which is not installed; "
            "pip install 'rookery[onnx]', or choose safetensors"
        )


def write(path: Path, policy: PolicyBundle, algorithm: Algorithm) -> None:
    """Writes a policy as an ONNX graph, with the weights of `algorithm`, which is built for it."""
    graph = OnnxPolicy(algorithm, policy.codec, policy.spec).eval()
    names = input_names(policy.spec, algorithm.memory)
    outputs = [ACTION, MEMORY_OUT][: 1 + bool(algorithm.memory)]
    with _quiet_exporter(), torch.no_grad():
        program = _traced(graph, names, outputs, policy.spec.name)
        for value in (value for node in program.model.graph for value in node.outputs):
            if value.name in names:  # an intermediate value such as `view`
                value.name = f"{value.name}_inside"
        program.save(str(path), external_data=False)


def _traced(graph: "OnnxPolicy", inputs: list[str], outputs: list[str], name: str) -> Any:
    try:
        return torch.onnx.export(
            graph,
            graph.examples(EXAMPLES),
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=(tuple({0: torch.export.Dim("batch")} for _ in inputs),),
            dynamo=True,
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ConfigError(
            f"the policy for {name} cannot be traced ({reason}); your network or algorithm must "
            "not branch on tensor values, nor take len() of a tensor; or choose safetensors"
        ) from error


def input_names(spec: EnvSpec, memory: int) -> list[str]:
    """Returns the names of an exported ONNX graph's inputs, in order.

    Raises `ConfigError` if an observation has the name of an output or of the recurrent state.
    """
    names = [leaf.name or OBS for leaf in spec.obs] + [MEMORY] * bool(memory)
    own = {ACTION, MEMORY_OUT, *([MEMORY] if memory else [])}
    if taken := sorted(own & {leaf.name for leaf in spec.obs}):
        raise ConfigError(
            f"{spec.name} has observations named {', '.join(taken)}, which are names of the "
            "graph's own inputs or outputs; rename them with a wrapper in env.wrappers, or export "
            "as safetensors"
        )
    return names


class OnnxPolicy(nn.Module):
    """Torch module for export to ONNX: maps an environment's observations to greedy actions."""

    def __init__(self, algorithm: Algorithm, codec: SpaceCodec, spec: EnvSpec):
        super().__init__()
        self.acting = algorithm.acting  # registers its parameters
        self._algorithm, self._spec = algorithm, spec
        self._parts = parts_of(codec.observation_space)
        spaces_of = {name: part.space for name, part in self._parts.items()}
        self._encoders = {leaf.name: _encoder(leaf, spaces_of[leaf.name]) for leaf in spec.obs}
        self._decode = _decoder(codec.action_space)

    def forward(self, *given: Tensor) -> Any:
        parts = zip(self._spec.obs, given, strict=False)  # the memory comes after them
        leaves = {leaf.name: self._encoded(leaf, x) for leaf, x in parts}
        memory = given[-1] if self._algorithm.memory else None
        action, memory = self._algorithm.greedy(self._spec.pack(leaves), memory)
        return self._decode(action) if memory is None else (self._decode(action), memory)

    def _encoded(self, leaf: Leaf, x: Tensor) -> Tensor:
        """Converts one observation array to network input; joins stacked frames along axis 1."""
        encode = self._encoders[leaf.name]
        if self._spec.frame_stack == 1:
            return encode(x)
        first, *rest = leaf.shape
        return encode(x.flatten(0, 1)).reshape(-1, self._spec.frame_stack * first, *rest)

    def examples(self, batch: int) -> tuple[Tensor, ...]:
        """Returns `batch` example inputs, with which the exporter traces the network."""
        frames = () if self._spec.frame_stack == 1 else (self._spec.frame_stack,)
        found = []
        for leaf in self._spec.obs:
            space = self._parts[leaf.name].space
            first = np.asarray(_start(space)).astype(space.dtype)
            shape = (batch, *frames, *space.shape)
            found.append(torch.from_numpy(np.broadcast_to(first, shape).copy()))
        memory = self._algorithm.memory
        return (*found, *([torch.zeros(batch, memory)] if memory else []))


class SpacePart(NamedTuple):
    """A leaf of an observation space, such as a Box, and its keys in the nested Dicts around it."""

    path: tuple[str, ...]
    space: Any


def parts_of(space: Space, path: tuple[str, ...] = ()) -> dict[str, SpacePart]:
    """Returns the leaves of an observation space by name: Dict keys, joined by slashes."""
    if not isinstance(space, spaces.Dict):
        return {"/".join(path): SpacePart(path, space)}
    found: dict[str, SpacePart] = {}
    for key, child in space.spaces.items():
        found |= parts_of(child, (*path, key))
    return found


Encode = Callable[[Tensor], Tensor]  # [B, *shape] of the environment → [B, *leaf] as stored


def _encoder(leaf: Leaf, space: Space) -> Encode:
    """Returns a function that converts a leaf of observations to the form that replay stores."""
    shape = space.shape or ()
    if leaf.kind is LeafKind.VECTOR:
        return lambda x: x.float().reshape(-1, *leaf.shape)
    if leaf.kind is LeafKind.IMAGE and len(shape) == 2:
        return lambda x: x.unsqueeze(1)
    if leaf.kind is LeafKind.IMAGE:
        axes = [axis + 1 for axis in channel_axes(shape)]
        return lambda x: x.permute(0, *axes)
    if leaf.kind is LeafKind.DISCRETE:
        start = torch.from_numpy(np.asarray(_start(space)).astype(np.int64).reshape(-1))
        width = prod(leaf.shape)
        return lambda x: x.long().reshape(-1, width) - start
    return lambda x: x.reshape(-1, *leaf.shape)  # BINARY, CODES, MASK: as they are


def _start(space: Any) -> Any:
    """Returns the smallest value (`start`) of a discrete space, 0 for other spaces."""
    return getattr(space, "start", 0)


def _decoder(space: Space) -> Callable[[Tensor], Tensor]:
    """Returns a function that converts the network's actions to elements of the action space."""
    dtype = torch.from_numpy(np.zeros(1, space.dtype)).dtype
    if isinstance(space, spaces.Box):
        low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
        bottom, width = low.double(), high.double() - low.double()
        return lambda x: torch.clamp((bottom + (x.double() + 1) * 0.5 * width).to(dtype), low, high)
    shape, start = space.shape or (), torch.from_numpy(np.asarray(_start(space)).astype(np.int64))
    return lambda x: (x.reshape(-1, *shape) + start).to(dtype)


class OnnxSession:
    """An exported ONNX policy that acts on single observations, like `rookery.Policy`."""

    def __init__(self, path: Path, policy: PolicyBundle):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors only
        try:
            providers = ["CPUExecutionProvider"]
            self._session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        except Exception as error:  # onnxruntime's errors have no common base class
            raise CheckpointError(
                f"{path} cannot be run as a graph ({error}); export it again"
            ) from error
        inputs = self._session.get_inputs()
        if fixed := [given.name for given in inputs if isinstance(given.shape[0], int)]:
            raise CheckpointError(
                f"{path} has a fixed batch size of {EXAMPLES} for {', '.join(fixed)}; write "
                "x.shape[0] instead of len(x) in your network or algorithm, and export it again"
            )
        self._spec, self._parts = policy.spec, parts_of(policy.codec.observation_space)
        self._memory = inputs[-1].shape[-1] if len(inputs) > len(policy.spec.obs) else 0

    def act(self, obs: Any, state: Any = None) -> tuple[Any, Any]:
        """Returns the action for one observation, and the state for the next call.

        The state holds stacked frames and the recurrent state; None begins an episode.
        """
        frames, memory = state or (None, np.zeros((1, self._memory), np.float32))
        given = {name: _frame(obs, part) for name, part in self._parts.items()}
        if self._spec.frame_stack > 1:
            given = frames = remember(frames, given, self._spec.frame_stack)
        else:
            given = {name: leaf[:, 0] for name, leaf in given.items()}
        feed = {name or OBS: leaf for name, leaf in given.items()}
        if self._memory:
            action, memory = self._session.run(None, {**feed, MEMORY: memory})
        else:
            (action,) = self._session.run(None, feed)
        return action[0], (frames, memory)


def _frame(obs: Any, part: SpacePart) -> Array:
    """Returns one leaf of an observation with axes for batch and frames, [1, 1, *shape]."""
    for key in part.path:
        obs = obs[key]
    return np.asarray(obs, dtype=part.space.dtype)[None, None]


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Hides log messages and deprecation warnings of the exporter."""
    with warnings.catch_warnings(), ExitStack() as stack:
        for logger in map(logging.getLogger, ("torch.onnx", "onnxscript", "onnx_ir")):
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        for kind in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", kind)
        # All inputs share the batch axis, and the exporter warns that only one can name it.
        warnings.filterwarnings("ignore", "# The axis name: batch", UserWarning)
        yield
