"""Writing a module as files of several formats, each compared with the module before it counts, and running them."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from coterie.errors import CoterieError, describe
from coterie.production.graph import Mixture, Served

Format = Literal["state_dict", "torchscript", "torch-export", "onnx"]
FORMATS: tuple[Format, ...] = get_args(Format)
FILES: dict[Format, str] = {
    "state_dict": "model.pt",
    "torchscript": "model.ts.pt",
    "torch-export": "model.pt2",
    "onnx": "model.onnx",
}
TOLERANCE = 1e-5
INSTALL = "pip install 'coterie[export]'"

Run = Callable[[Tensor], Tensor]


class Missing(CoterieError):
    """A library that a format needs is not installed."""


@dataclass(frozen=True)
class Writing:
    """One module that becomes files.

    Attributes
    ----------
    module : Served
        In evaluation mode.
    examples : Tensor
        Some inputs ``(n, *raw shape)``, n >= 3, of the type that the files will take.
    output : str
        The name of what comes out.
    """

    module: Served
    examples: Tensor
    output: str

    def write(self, format: Format, folder: Path) -> Path:
        """Write one file, and compare what it gives with the module.

        Raises
        ------
        Missing
            A library is not installed.
        CoterieError
            The model cannot be written in this format, or the file gives something else.
        """
        path = folder / FILES[format]
        try:
            with _quiet():
                getattr(self, f"_{format.replace('-', '_')}")(path)
                if format != "state_dict":
                    self._compare(RUNNERS[format](path), format)
        except CoterieError:
            path.unlink(missing_ok=True)
            raise
        except Exception as error:  # whatever torch says of somebody's code
            path.unlink(missing_ok=True)
            reason = describe(error).partition(". ")[0][:300]
            raise CoterieError(
                f"The model cannot be written as {format} ({reason}): choose another --format."
            ) from error
        return path

    def _state_dict(self, path: Path) -> None:
        torch.save(bare(self.module).state_dict(), path)

    def _torchscript(self, path: Path) -> None:
        trace: Any = torch.jit.trace  # untyped
        trace(self.module, (self.examples[:2],), check_trace=False).save(str(path))

    def _torch_export(self, path: Path) -> None:
        torch.export.save(self._program, path)

    def _onnx(self, path: Path) -> None:
        for library in ("onnx", "onnxscript"):
            if importlib.util.find_spec(library) is None:
                raise Missing(f"Writing ONNX needs {library}, which is not installed: {INSTALL}.")
        program = torch.onnx.export(
            self._program,
            dynamo=True,
            verbose=False,
            input_names=["inputs"],
            output_names=[self.output],
            dynamic_shapes={"inputs": {0: "batch"}},
        )
        assert program is not None
        program.save(str(path))

    @cached_property
    def _program(self) -> torch.export.ExportedProgram:
        batch = torch.export.Dim("batch", min=1)
        with torch.no_grad():
            return torch.export.export(self.module, (self.examples[:2],), dynamic_shapes={"inputs": {0: batch}})

    def _compare(self, run: Run, format: Format) -> None:
        """Another batch size than that of the tracing, and a single input."""
        for inputs in (self.examples, self.examples[:1]):
            with torch.no_grad():
                expected = self.module(inputs).double()
            found = run(inputs).double()
            relative = 0.0 if self.output == "probabilities" else TOLERANCE
            if not torch.allclose(found, expected, rtol=relative, atol=TOLERANCE, equal_nan=True):
                raise CoterieError(
                    f"As {format} the model gives other values than in PyTorch, as models do that decide something "
                    "from their inputs in Python: choose another --format."
                )


def bare(module: Served) -> nn.Module:
    """The client's own model, or the mixture, without what happens before and after."""
    return module.model


def is_mixture(module: Served) -> bool:
    """Whether several candidates answer together."""
    return isinstance(module.model, Mixture)


def _script(path: Path) -> Run:
    load: Any = torch.jit.load  # untyped
    module = load(str(path))

    def run(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            outputs: Tensor = module(inputs)
        return outputs

    return run


def _program(path: Path) -> Run:
    module = torch.export.load(path).module()

    def run(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            outputs: Tensor = module(inputs)
        return outputs

    return run


def _session(path: Path) -> Run:
    try:
        import onnxruntime
    except ImportError as error:
        raise Missing(f"Running {path.name} needs onnxruntime, which is not installed: {INSTALL}.") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda inputs: torch.from_numpy(session.run(None, {"inputs": inputs.numpy()})[0])


RUNNERS: dict[Format, Callable[[Path], Run]] = {
    "torchscript": _script,
    "torch-export": _program,
    "onnx": _session,
}


def open_export(folder: Path) -> Run:
    """The first file of an export that can be run; TorchScript is opened fastest.

    Raises
    ------
    CoterieError
        There is none, or it is damaged.
    """
    for format in RUNNERS:
        path = folder / FILES[format]
        if path.is_file():
            try:
                with _quiet():
                    return RUNNERS[format](path)
            except CoterieError:
                raise
            except Exception as error:  # torch and onnxruntime have many
                raise CoterieError(f"{path} is damaged ({describe(error)[:200]}): export the model again.") from error
    raise CoterieError(
        f"{folder} holds no file that can be run (model.pt2, model.ts.pt or model.onnx): export the model again."
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says of itself while it traces."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.onnx._internal.exporter._registration")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
